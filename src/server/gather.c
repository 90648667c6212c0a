/* Gathers a whole answer from its events. */
#include <string.h>

#include "base/mem.h"
#include "server/writer.h"

static char *copy_text(const char *text, size_t n)
{
    char *copy = mem_alloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

static err_code add_call(struct gathered_choice *g, const struct answer_event *event, struct err *e)
{
    struct gathered_call *more = mem_resize(g->calls, g->n_calls + 1, sizeof *more);
    if (!more)
        return err_nomem(e, (g->n_calls + 1) * sizeof *more, "a call");
    g->calls = more;
    struct gathered_call *call = &g->calls[g->n_calls++];
    *call = (struct gathered_call){.id = mem_strdup(event->id ? event->id : ""),
                                   .name = copy_text(event->text, event->n),
                                   .n_content = g->content.n,
                                   .n_tokens = json_array_size(g->logprobs)};
    return call->id && call->name ? bytes_add(&call->arguments, "", 0, e) : err_nomem(e, event->n, "a call");
}

static err_code add_arguments(struct gathered_choice *g, const struct answer_event *event, struct err *e)
{
    return g->n_calls ? bytes_add(&g->calls[g->n_calls - 1].arguments, event->text, event->n, e) : ERR_OK;
}

static err_code add_token(struct gathered_choice *g, const struct answer_event *event, struct err *e)
{
    if (!g->ids)
        g->ids = json_array();
    if (!g->logprobs)
        g->logprobs = json_array();
    int bad = json_array_append_new(g->ids, json_integer(event->token->id));
    bad |= json_array_append_new(g->logprobs, openai_logprob(event->token, event->n_top));
    return bad ? err_nomem(e, 0, "a token") : ERR_OK;
}

/* Compact, as there may be many. */
static err_code add_prompt(struct gathered_choice *g, const struct answer_event *event, struct err *e)
{
    size_t n = event->n_tok * (1 + (size_t)event->n_top);
    TRY(bytes_add(&g->prompt, event->text, event->n, e));
    if (n == 0)
        return ERR_OK;
    g->prompt_tokens = mem_calloc(n, sizeof *g->prompt_tokens);
    if (!g->prompt_tokens)
        return err_nomem(e, n * sizeof *g->prompt_tokens, "a prompt's tokens");
    memcpy(g->prompt_tokens, event->token, n * sizeof *g->prompt_tokens);
    g->n_prompt_tok = event->n_tok;
    g->n_prompt_top = event->n_top;
    return ERR_OK;
}

err_code gathered_choice_add(struct gathered_choice *g, const struct answer_event *event, struct err *e)
{
    switch (event->kind) {
    case ANSWER_PROMPT: return add_prompt(g, event, e);
    case ANSWER_REASONING: return bytes_add(&g->reasoning, event->text, event->n, e);
    case ANSWER_CONTENT: return bytes_add(&g->content, event->text, event->n, e);
    case ANSWER_CALL: return add_call(g, event, e);
    case ANSWER_ARGUMENTS: return add_arguments(g, event, e);
    case ANSWER_TOKEN: return add_token(g, event, e);
    case ANSWER_END:
        g->finish = event->finish;
        g->usage = event->usage;
        g->stop = event->stop ? mem_strdup(event->stop) : NULL;
        return event->stop && !g->stop ? err_nomem(e, strlen(event->stop), "an answer") : ERR_OK;
    case ANSWER_FAILED: return err_set(e, event->error->code, "%s", event->error->text);
    case ANSWER_CALL_END:
        if (g->n_calls)
            g->calls[g->n_calls - 1].is_whole = true;
        break;
    case ANSWER_BEGIN:
    case ANSWER_PROGRESS: break;
    }
    return ERR_OK;
}

void gathered_choice_close(struct gathered_choice *g)
{
    for (size_t i = 0; i < g->n_calls; i++) {
        mem_free(g->calls[i].id);
        mem_free(g->calls[i].name);
        bytes_close(&g->calls[i].arguments);
    }
    mem_free(g->calls);
    mem_free(g->stop);
    bytes_close(&g->prompt);
    mem_free(g->prompt_tokens);
    bytes_close(&g->reasoning);
    bytes_close(&g->content);
    json_decref(g->logprobs);
    json_decref(g->ids);
    *g = (struct gathered_choice){0};
}
