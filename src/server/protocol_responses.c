/* OpenAI's responses: /v1/responses. This server keeps none of them: each request brings the whole conversation.
 *
 * An answer is a list of items: reasoning, a message, calls. A stream tells each from its beginning (output_item.added)
 * to its end (output_item.done), and the whole answer at its own end. Reasoning is told as reasoning_text, or as a
 * summary where the client asked for one (reasoning.summary), as some clients show summaries alone. With
 * include: ["reasoning.encrypted_content"] the item's encrypted_content carries the text, too, for clients that send
 * nothing else back. */
#include <string.h>

#include "base/json_text.h"
#include "server/responses_internal.h"

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* Sends an event, whose type and number are added to it. Takes over `data`. */
static err_code send_event(struct answer_writer *w, const char *type, json_t *data, struct bytes *out, struct err *e)
{
    json_t *event = json_pack("{s:s,s:I}", "type", type, "sequence_number", (json_int_t)w->n_sent);
    int bad = data ? json_object_update(event, data) : -1;
    json_decref(data);
    TRY(writer_send(out, type, json_unless(bad, event), e));
    w->n_sent++;
    return ERR_OK;
}

static err_code send_response(struct answer_writer *w, const char *type, json_t *response, struct bytes *out,
                              struct err *e)
{
    return send_event(w, type, json_pack("{s:o}", "response", response), out, e);
}

/* The open block as an item. */
static struct item open_item(const struct answer_writer *w, bool is_done)
{
    const struct told_choice *c = &w->choices[0];
    return (struct item){.kind = w->block,
                         .index = w->n_block - 1,
                         .id = c->call.id,
                         .name = c->call.name,
                         .text = w->text.s ? w->text.s : "",
                         .n = w->text.n,
                         .tokens = c->tokens,
                         .is_done = is_done};
}

/* The names in the events of a block. */
struct words {
    const char *prefix;        /* of the item's id */
    const char *delta, *done;  /* event types */
    const char *added, *ended; /* event types of the block's part; NULL: it has no part */
    const char *part, *index;  /* the part's type, and the name of its index */
    const char *all;           /* the name of the whole text in the done event */
};

static const struct words *block_words(const struct answer_writer *w)
{
    static const struct words reasoning = {"rs",
                                           "response.reasoning_text.delta",
                                           "response.reasoning_text.done",
                                           "response.content_part.added",
                                           "response.content_part.done",
                                           "reasoning_text",
                                           "content_index",
                                           "text"},
                              summary = {"rs",
                                         "response.reasoning_summary_text.delta",
                                         "response.reasoning_summary_text.done",
                                         "response.reasoning_summary_part.added",
                                         "response.reasoning_summary_part.done",
                                         "summary_text",
                                         "summary_index",
                                         "text"},
                              content = {"msg",
                                         "response.output_text.delta",
                                         "response.output_text.done",
                                         "response.content_part.added",
                                         "response.content_part.done",
                                         "output_text",
                                         "content_index",
                                         "text"},
                              function = {"fc",
                                          "response.function_call_arguments.delta",
                                          "response.function_call_arguments.done",
                                          NULL,
                                          NULL,
                                          NULL,
                                          NULL,
                                          "arguments"},
                              custom = {"ctc",
                                        "response.custom_tool_call_input.delta",
                                        "response.custom_tool_call_input.done",
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        "input"};
    if (w->block == BLOCK_REASONING)
        return responses_want_summary(w->r) ? &summary : &reasoning;
    if (w->block == BLOCK_CONTENT)
        return &content;
    return tools_client_name(w->r, w->choices[0].call.name).is_custom ? &custom : &function;
}

/* The fields that all events of the open block have: the item's id and index, and the part's index. */
static json_t *make_place(const struct answer_writer *w)
{
    const struct words *words = block_words(w);
    json_t *place = json_pack("{s:o,s:I}", "item_id", responses_item_id(&w->head, words->prefix, w->n_block - 1),
                              "output_index", (json_int_t)(w->n_block - 1));
    return json_unless(words->index && json_object_set_new(place, words->index, json_integer(0)), place);
}

/* The same fields and one more. Takes over `value`. */
static json_t *make_place_with(const struct answer_writer *w, const char *name, json_t *value)
{
    json_t *place = make_place(w);
    return json_unless(json_object_set_new(place, name, value), place);
}

static err_code send_text_delta(struct answer_writer *w, json_t *delta, struct bytes *out, struct err *e)
{
    json_t *data = make_place_with(w, "delta", delta);
    int bad = 0;
    if (w->block == BLOCK_CONTENT)
        bad = json_object_set_new(data, "logprobs", json_array()); /* the done event has them */
    return send_event(w, block_words(w)->delta, json_unless(bad, data), out, e);
}

static err_code send_done(struct answer_writer *w, const struct item *item, struct bytes *out, struct err *e)
{
    const struct words *words = block_words(w);
    bool is_custom = w->block == BLOCK_CALL && !strcmp(words->all, "input");
    json_t *text = responses_call_input(item, is_custom);
    if (is_custom)
        TRY(send_text_delta(w, json_incref(text), out, e));
    json_t *data = make_place_with(w, words->all, text);
    int bad = 0;
    if (w->block == BLOCK_CALL && !is_custom)
        bad |= json_object_set_new(data, "name", json_string(tools_client_name(w->r, item->name).name));
    if (w->block == BLOCK_CONTENT)
        bad |= json_object_set(data, "logprobs", item->tokens);
    TRY(send_event(w, words->done, json_unless(bad, data), out, e));
    return words->ended
               ? send_event(w, words->ended, make_place_with(w, "part", responses_part(words->part, item)), out, e)
               : ERR_OK;
}

static err_code close_block(struct answer_writer *w, bool is_cut, struct bytes *out, struct err *e)
{
    if (w->block == BLOCK_NONE)
        return ERR_OK;
    struct item item = open_item(w, true);
    item.is_cut = is_cut;
    TRY(send_done(w, &item, out, e));
    json_t *made = responses_item(w->r, &w->head, &item);
    if (json_array_append(w->output, made) != 0) {
        json_decref(made);
        return err_nomem(e, 0, "an item");
    }
    json_t *data = json_pack("{s:I,s:o}", "output_index", (json_int_t)item.index, "item", made);
    TRY(send_event(w, "response.output_item.done", data, out, e));
    if (w->block == BLOCK_CONTENT) {
        json_decref(w->choices[0].tokens);
        w->choices[0].tokens = json_array(); /* the item has the other one */
    }
    w->block = BLOCK_NONE;
    bytes_close(&w->text);
    open_call_close(&w->choices[0].call);
    return ERR_OK;
}

static err_code open_block(struct answer_writer *w, enum block kind, const struct answer_event *event,
                           struct bytes *out, struct err *e)
{
    TRY(close_block(w, false, out, e));
    w->block = kind;
    w->n_block++;
    if (kind == BLOCK_CALL)
        TRY(open_call_begin(&w->choices[0].call, event, e));
    struct item item = open_item(w, false);
    TRY(send_event(
        w, "response.output_item.added",
        json_pack("{s:I,s:o}", "output_index", (json_int_t)item.index, "item", responses_item(w->r, &w->head, &item)),
        out, e));
    const struct words *words = block_words(w);
    struct item empty = {.text = ""};
    return words->added
               ? send_event(w, words->added, make_place_with(w, "part", responses_part(words->part, &empty)), out, e)
               : ERR_OK;
}

static err_code tell_text(struct answer_writer *w, enum block kind, const struct answer_event *event, struct bytes *out,
                          struct err *e)
{
    if (w->block != kind && kind == BLOCK_CALL)
        return ERR_OK; /* arguments of no call */
    if (w->block != kind)
        TRY(open_block(w, kind, event, out, e));
    TRY(bytes_add(&w->text, event->text, event->n, e));
    if (kind == BLOCK_CALL && tools_client_name(w->r, w->choices[0].call.name).is_custom)
        return ERR_OK; /* send_done has the input */
    return send_text_delta(w, json_text(event->text, event->n), out, e);
}

static err_code tell_begin(struct answer_writer *w, struct bytes *out, struct err *e)
{
    static const char *const types[] = {"response.created", "response.in_progress"};
    for (int i = 0; i < 2; i++)
        TRY(send_response(w, types[i], responses_make(w->r, &w->head, "in_progress", json_array(), NULL, NULL, NULL),
                          out, e));
    return ERR_OK;
}

static err_code tell_end(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    bool is_cut = event->finish == FINISH_LENGTH;
    TRY(close_block(w, is_cut, out, e));
    return send_response(w, is_cut ? "response.incomplete" : "response.completed",
                         responses_make(w->r, &w->head, is_cut ? "incomplete" : "completed", json_incref(w->output),
                                        is_cut ? "max_output_tokens" : NULL, &event->usage, NULL),
                         out, e);
}

static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    switch (event->kind) {
    case ANSWER_BEGIN: return tell_begin(w, out, e);
    case ANSWER_REASONING: return w->r->hides_reasoning ? ERR_OK : tell_text(w, BLOCK_REASONING, event, out, e);
    case ANSWER_CONTENT: return tell_text(w, BLOCK_CONTENT, event, out, e);
    case ANSWER_CALL: return open_block(w, BLOCK_CALL, event, out, e);
    case ANSWER_ARGUMENTS: return tell_text(w, BLOCK_CALL, event, out, e);
    case ANSWER_CALL_END: return w->block == BLOCK_CALL ? close_block(w, false, out, e) : ERR_OK;
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END: return tell_end(w, event, out, e);
    case ANSWER_FAILED:
        return send_response(w, "response.failed",
                             responses_make(w->r, &w->head, "failed", json_incref(w->output), NULL, NULL, event->error),
                             out, e);
    case ANSWER_PROMPT:
    case ANSWER_PROGRESS: break;
    }
    return ERR_OK;
}

/* A ping is an event, because some clients time the gaps between events and ignore comments. */
static void ping(struct answer_writer *w, struct bytes *out)
{
    if (w->n_sent == 0) { /* nothing may come before response.created */
        writer_ping_comment(w, out);
        return;
    }
    err_code unsent = send_event(w, "keepalive", json_object(), out, NULL);
    (void)unsent; /* without memory there is one ping less */
}

/* The log-probabilities of tokens [from, to); NULL: none are wanted. */
static json_t *slice_tokens(const struct server_request *r, const struct gathered_choice *c, size_t from, size_t to)
{
    json_t *slice = r->n_logprob >= 0 ? json_array() : NULL;
    int bad = 0;
    for (size_t i = from; i < to && slice; i++)
        bad |= json_array_append(slice, json_array_get(c->logprobs, i));
    return json_unless(bad, slice);
}

/* A whole answer while it is built. */
struct making {
    const struct server_request *r;
    const struct answer_head *head;
    const struct gathered_choice *c;
    json_t *output;
    size_t n_content, n_tokens; /* bytes of content, and log-probabilities, in the items so far */
};

static int add_item(struct making *m, struct item item)
{
    item.index = (int64_t)json_array_size(m->output);
    item.is_done = true;
    return json_array_append_new(m->output, responses_item(m->r, m->head, &item));
}

/* Adds the content since the last item, up to n_content bytes. As in a stream, content between calls is an item. */
static int add_content(struct making *m, size_t n_content, size_t n_tokens, bool is_cut)
{
    if (n_content == m->n_content)
        return 0;
    json_t *tokens = slice_tokens(m->r, m->c, m->n_tokens, n_tokens);
    int bad = add_item(m, (struct item){.kind = BLOCK_CONTENT,
                                        .text = m->c->content.s + m->n_content,
                                        .n = n_content - m->n_content,
                                        .tokens = tokens,
                                        .is_cut = is_cut});
    json_decref(tokens);
    m->n_content = n_content;
    m->n_tokens = n_tokens;
    return bad;
}

static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    const struct gathered_choice *c = &choices[0];
    struct making m = {.r = r, .head = head, .c = c, .output = json_array()};
    int bad = 0;
    if (c->reasoning.n > 0 && !r->hides_reasoning)
        bad |= add_item(&m, (struct item){.kind = BLOCK_REASONING, .text = c->reasoning.s, .n = c->reasoning.n});
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct gathered_call *call = &c->calls[i];
        bad |= add_content(&m, call->n_content, call->n_tokens, false);
        bad |= add_item(&m, (struct item){.kind = BLOCK_CALL,
                                          .id = call->id,
                                          .name = call->name,
                                          .text = call->arguments.s,
                                          .n = call->arguments.n,
                                          .is_cut = !call->is_whole});
    }
    bool is_cut = c->finish == FINISH_LENGTH;
    bad |= add_content(&m, c->content.n, json_array_size(c->logprobs), is_cut);
    return json_unless(bad, responses_make(r, head, is_cut ? "incomplete" : "completed", m.output,
                                           is_cut ? "max_output_tokens" : NULL, &c->usage, NULL));
}

const struct protocol protocol_responses = {.name = "responses",
                                            .content_type = "text/event-stream",
                                            .overflows_in_stream = true,
                                            .parse = responses_parse,
                                            .error = openai_error,
                                            .open = writer_open,
                                            .event = tell,
                                            .ping = ping,
                                            .close = writer_close,
                                            .whole = whole};
