#include "cli/conversation.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "cli/chat_prompt.h"
#include "cli/eval_prompt.h"
#include "cli/input_text.h"
#include "cli/interrupt.h"

enum {
    MAX_FILE_BYTES = 8 << 20, /* of a saved conversation; more than the longest contexts hold */
    MAX_MESSAGES = 10000,     /* in a saved conversation */
};

err_code conversation_open(struct conversation *c, struct err *e)
{
    c->ahead.n_draft = c->model->n_draft;
    c->messages = json_array();
    return c->messages ? ERR_OK : err_nomem(e, 0, "a conversation");
}

void conversation_close(struct conversation *c)
{
    json_decref(c->messages);
    look_ahead_close(&c->ahead);
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

static bool has_role(const json_t *message, const char *role)
{
    const char *s = json_string_value(json_object_get(message, "role"));
    return s && !strcmp(s, role);
}

static err_code add_message(struct conversation *c, const char *role, const char *content, const char *reasoning,
                            struct err *e)
{
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", json_text(content, strlen(content)));
    if (!m ||
        (*reasoning && json_object_set_new(m, "reasoning_content", json_text(reasoning, strlen(reasoning))) != 0) ||
        json_array_append_new(c->messages, m) != 0)
        return err_nomem(e, strlen(content), "a message");
    return ERR_OK;
}

static bool begins_with_system(const struct conversation *c)
{
    return has_role(json_array_get(c->messages, 0), "system");
}

const char *conversation_system(const struct conversation *c)
{
    const json_t *first = json_array_get(c->messages, 0);
    return begins_with_system(c) ? json_string_value(json_object_get(first, "content")) : NULL;
}

err_code conversation_set_system(struct conversation *c, const char *text, struct err *e)
{
    if (begins_with_system(c))
        json_array_remove(c->messages, 0);
    if (!*text)
        return ERR_OK;
    json_t *m = json_pack("{s:s, s:o}", "role", "system", "content", json_text(text, strlen(text)));
    return json_array_insert_new(c->messages, 0, m) == 0 ? ERR_OK : err_nomem(e, strlen(text), "a message");
}

void conversation_reset(struct conversation *c)
{
    for (size_t n = json_array_size(c->messages); n > begins_with_system(c); n--)
        json_array_remove(c->messages, n - 1);
}

err_code conversation_take_back(struct conversation *c, char **text, struct err *e)
{
    size_t n = json_array_size(c->messages), last = n;
    while (last > 0 && !has_role(json_array_get(c->messages, last - 1), "user"))
        last--;
    const char *content = json_string_value(json_object_get(json_array_get(c->messages, last - 1), "content"));
    *text = NULL;
    if (last == 0 || !content)
        return ERR_OK;
    *text = mem_strdup(content);
    if (!*text)
        return err_nomem(e, strlen(content), "a message");
    while (n >= last)
        json_array_remove(c->messages, --n);
    return ERR_OK;
}

err_code conversation_save(const struct conversation *c, const char *path, struct err *e)
{
    struct output_file file = {0};
    TRY(output_file_open(&file, path, e));
    if (json_dumpf(c->messages, file.stream, JSON_INDENT(2)) != 0) {
        output_file_abandon(&file);
        return err_set(e, ERR_IO, "%s: the conversation could not be written", path);
    }
    fputc('\n', file.stream);
    return output_file_finish(&file, e);
}

err_code conversation_parse(struct conversation *c, const char *text, size_t n, const char *path, struct err *e)
{
    json_error_t error;
    json_t *messages = json_read(text, n, JSON_ALLOW_NUL, &error);
    if (!messages)
        return err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    if (!chat_prompt_is_messages(messages)) {
        json_decref(messages);
        return err_set(e, ERR_FORMAT, "%s: expected a JSON array of messages, objects with role and content", path);
    }
    if (json_array_size(messages) > MAX_MESSAGES) {
        json_decref(messages);
        return err_set(e, ERR_LIMIT, "%s: expected at most %d messages", path, MAX_MESSAGES);
    }
    json_decref(c->messages);
    c->messages = messages;
    return ERR_OK;
}

err_code conversation_load(struct conversation *c, const char *path, struct err *e)
{
    char *text = NULL;
    size_t n;
    TRY(cli_read_file_within(path, MAX_FILE_BYTES, &text, &n, e));
    err_code code = conversation_parse(c, text, n, path, e);
    mem_free(text);
    return code;
}

/* ---- the prompt ---------------------------------------------------------------------------------------------- */

static err_code render(const struct conversation *c, struct chat_prompt *p, struct err *e)
{
    return chat_prompt_render(p, c->tmpl, moebius_engine_vocab(c->opened->engine), c->messages, c->vars, c->n_vars, e);
}

static size_t n_json_bytes(const json_t *j)
{
    return json_dumpb(j, NULL, 0, JSON_COMPACT);
}

/* Removes the oldest exchange: the first message of the user and all up to the user's next one. Returns the number of
 * its messages; 0 if it is the only exchange, which stays. Adds its length to *n_bytes. */
static size_t drop_exchange(struct conversation *c, size_t *n_bytes)
{
    size_t first = 0, n = json_array_size(c->messages);
    while (first < n && !has_role(json_array_get(c->messages, first), "user"))
        first++;
    size_t end = first + 1;
    while (end < n && !has_role(json_array_get(c->messages, end), "user"))
        end++;
    if (end >= n)
        return 0;
    for (size_t i = first; i < end; i++) {
        *n_bytes += n_json_bytes(json_array_get(c->messages, first));
        json_array_remove(c->messages, first);
    }
    return end - first;
}

/* Removes the oldest exchanges, at least one, until so many bytes are removed. Returns the number of messages; 0: there
 * is only one exchange. */
static size_t drop_oldest(struct conversation *c, size_t n_bytes)
{
    size_t n_dropped = 0, n_gone = 0, n;
    do {
        n = drop_exchange(c, &n_gone);
        n_dropped += n;
    } while (n && n_gone < n_bytes);
    return n_dropped;
}

/* Makes the prompt, with room for n_more tokens and some of an answer. If it is too long, old messages are removed:
 * each time about half of the excess, so that a long conversation is cut in a few rounds, and no more is removed than
 * need be. */
static err_code render_to_fit(struct conversation *c, size_t n_more, struct chat_prompt *p, size_t *n_dropped,
                              struct err *e)
{
    size_t n_ctx = (size_t)moebius_session_n_ctx(c->opened->session);
    for (;;) {
        TRY(render(c, p, e));
        if (p->n == 0)
            return err_set(e, ERR_FORMAT, "the chat template makes an empty prompt of these messages");
        if (p->n + n_more + n_ctx / 8 < n_ctx)
            return ERR_OK;
        double excess = (double)(p->n + n_more + n_ctx / 8 - n_ctx) / (double)p->n;
        size_t dropped = drop_oldest(c, (size_t)(excess / 2 * (double)n_json_bytes(c->messages)));
        *n_dropped += dropped;
        if (dropped == 0 && p->n + n_more < n_ctx)
            return ERR_OK;
        if (dropped == 0)
            return err_set(e, ERR_LIMIT, "%zu tokens, and the context has %zu: shorten it or raise --ctx",
                           p->n + n_more, n_ctx);
    }
}

/* ---- evaluating ---------------------------------------------------------------------------------------------- */

/* Brings the session to exactly these tokens, with the logits after the last; their common beginning with what the
 * session holds is kept. An interrupt is no failure: the session has a part of the tokens then. */
static err_code bring_to(struct conversation *c, const int32_t *ids, size_t n, struct err *e)
{
    moebius_session *s = c->opened->session;
    int64_t start = clock_ns();
    size_t n_kept = 0;
    err_code code = cli_sync_prompt(c->model, s, ids, n, &n_kept, e);
    int64_t first = (int64_t)n_kept, end = moebius_session_pos(s);
    moebius_sampler_forget(c->sampler);
    (void)moebius_sampler_set_matcher(c->sampler, NULL, NULL); /* the grammar does not apply to what was said before */
    for (int64_t i = 0; i < end; i++)
        moebius_sampler_accept(c->sampler, ids[i]);
    if (c->form.matcher)
        (void)moebius_sampler_set_matcher(c->sampler, c->form.matcher,
                                          NULL); /* it was set before, and has its memory */
    c->stats.n_reused += first;
    c->stats.n_prompt += end > first ? end - first : 0;
    c->stats.prefill_ns += clock_ns() - start;
    return code == ERR_CANCELLED ? ERR_OK : code;
}

/* Makes room when the context is full in the middle of an answer: removes old messages, and continues from the shorter
 * prompt and the answer so far. */
static err_code make_room(struct conversation *c, const int32_t *answer, size_t n_answer, size_t *n_dropped,
                          struct err *e)
{
    struct chat_prompt p = {0};
    size_t dropped = drop_oldest(c, 0);
    if (dropped == 0)
        return err_set(e, ERR_LIMIT, "the context of %lld tokens is full",
                       (long long)moebius_session_n_ctx(c->opened->session));
    *n_dropped += dropped;
    err_code code = render_to_fit(c, n_answer, &p, n_dropped, e);
    int32_t *all = code == ERR_OK ? mem_calloc(p.n + n_answer, sizeof *all) : NULL;
    if (code == ERR_OK && !all)
        code = err_nomem(e, (p.n + n_answer) * sizeof *all, "a prompt");
    if (code == ERR_OK) {
        memcpy(all, p.ids, p.n * sizeof *all);
        memcpy(all + p.n, answer, n_answer * sizeof *all);
        code = bring_to(c, all, p.n + n_answer, e);
    }
    mem_free(all);
    chat_prompt_close(&p);
    return code;
}

static err_code answer(struct conversation *c, const struct chat_prompt *p, moebius_reply *reply,
                       struct conversation_turn *turn, struct err *e)
{
    moebius_error error;
    int64_t n_ctx = moebius_session_n_ctx(c->opened->session);
    int32_t *said = mem_calloc((size_t)n_ctx, sizeof *said);
    err_code code = said ? bring_to(c, p->ids, p->n, e) : err_nomem(e, (size_t)n_ctx * sizeof *said, "an answer");
    const struct text_request request = {.grammar = c->grammar, .grammar_from = TEXT_GRAMMAR_FROM_CONTENT};
    const struct answer seen = {.reply = reply};
    size_t n = 0;
    bool end = false;
    if (code == ERR_OK)
        code = constraint_open(&c->form, &request, c->sampler, e);
    if (code == ERR_OK)
        code = look_ahead_begin(&c->ahead, c->opened->engine, c->opened->session, e);
    while (code == ERR_OK && !cli_interrupted()) {
        int32_t id = -1;
        code = constraint_pick(&c->form, &seen, look_ahead_logits(&c->ahead), &id, e);
        if (id < 0 || code != ERR_OK) /* the grammar's text has ended */
            break;
        moebius_sampler_accept(c->sampler, id);
        c->stats.n_said++;
        if (moebius_reply_feed(reply, id, &end, &error) != MOEBIUS_OK)
            code = err_adopt(e, &error);
        if (end || code != ERR_OK || (turn->out_of_tokens = (int64_t)n + 1 == c->max_answer))
            break;
        said[n++] = id;
        if ((int64_t)look_ahead_pos(&c->ahead) == n_ctx) {
            look_ahead_end(&c->ahead);
            code = make_room(c, said, n, &turn->n_dropped, e);
            if (code == ERR_OK)
                code = look_ahead_begin(&c->ahead, c->opened->engine, c->opened->session, e);
            continue;
        }
        int64_t took_ns;
        code = look_ahead_eval(&c->ahead, id, &took_ns, e);
        c->stats.decode_ns += took_ns;
        c->stats.n_decoded += code == ERR_OK;
    }
    look_ahead_end(&c->ahead);
    turn->interrupted = cli_interrupted();
    constraint_close(&c->form);
    mem_free(said);
    return code;
}

err_code conversation_say(struct conversation *c, const char *text, moebius_reply_fn *fn, void *user,
                          struct conversation_turn *turn, struct err *e)
{
    struct chat_prompt p = {0};
    moebius_reply *reply = NULL;
    moebius_error error;
    size_t n_content = 0, n_reasoning = 0, n = 0;
    *turn = (struct conversation_turn){0};
    TRY(add_message(c, "user", text, "", e));
    err_code code = render_to_fit(c, 0, &p, &turn->n_dropped, e);
    const char *prompt = code == ERR_OK ? moebius_prompt_text(p.rendered, &n) : NULL;
    if (code == ERR_OK &&
        moebius_reply_open(&reply, c->tmpl, answer_prompt_end(prompt, n), fn, user, &error) != MOEBIUS_OK)
        code = err_adopt(e, &error);
    if (code == ERR_OK) {
        code = answer(c, &p, reply, turn, e);
        moebius_reply_finish(reply);
        const char *content = moebius_reply_text(reply, MOEBIUS_REPLY_CONTENT, &n_content);
        const char *reasoning = moebius_reply_text(reply, MOEBIUS_REPLY_REASONING, &n_reasoning);
        bool full = code == ERR_LIMIT && n_content + n_reasoning > 0;
        if ((code == ERR_OK && (!turn->interrupted || n_content + n_reasoning)) || full) {
            struct err ignored;
            c->stats.n_answer++;
            if (add_message(c, "assistant", content, reasoning, code == ERR_OK ? e : &ignored) != ERR_OK &&
                code == ERR_OK)
                code = e->code;
        } else {
            json_array_remove(c->messages, json_array_size(c->messages) - 1);
        }
    } else {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    }
    moebius_reply_close(&reply);
    chat_prompt_close(&p);
    return code;
}
