/* The own interface of llama.cpp's server: /completion, and /infill for editors. */
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "server/writer.h"

/* ---- the request ----------------------------------------------------------------------------------------------- */

/* Which fields of an answer the client wants: ["content", "timings/prompt_n"]. */
static err_code set_response_fields(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_string(json_array_get(value, i)))
            return request_expected(e, field_path(path, (long)i, NULL).s, json_array_get(value, i), "a field's name");
    return json_is_array(value) ? ERR_OK : request_expected(e, path, value, "a list of fields' names");
}

#define LLAMA_FIELDS                                                                                                   \
    FIELD_SETTER("response_format", request_set_response_format),                                                      \
        FIELD_SETTER("response_fields", set_response_fields),                                                          \
        FIELD_NONE("post_sampling_probs", "log-probabilities are the model's own"),                                    \
        FIELD_NONE("lora", "this server knows no adapters"), FIELD_NONE("image_data", "this server reads text only"),  \
        FIELD_IGNORED("t_max_prompt_ms"), FIELD_IGNORED("n_indent")

static err_code parse(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {LLAMA_FIELDS, FIELD_SETTER("prompt", request_set_prompts)};
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    TRY(request_check_prompts(r, e));
    return request_check(r, e);
}

static err_code set_suffix(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    r->suffix = value; /* also an empty one */
    return json_is_string(value) ? ERR_OK : request_expected(e, path, value, "the text behind the answer");
}

static err_code set_extra(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    enum { MAX_FILES = 1024 };
    if (!json_is_array(value) || json_array_size(value) > MAX_FILES)
        return request_expected(e, path, value, "a list of at most 1024 files");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *file = json_array_get(value, i), *name = json_object_get(file, "filename");
        if (!json_is_string(json_object_get(file, "text")) || (name && !json_is_string(name)))
            return request_expected(e, field_path(path, (long)i, NULL).s, file,
                                    "an object with a text, and a filename that is one");
    }
    r->extra = value;
    return ERR_OK;
}

/* A text that is said in two parts: lines, and the beginning of the line with the gap. */
static err_code join_prompt(struct server_request *r, struct err *e)
{
    static const char *const names[] = {"input_prefix", "prompt"};
    struct bytes text = {0};
    err_code code = ERR_OK;
    for (int i = 0; i < 2 && code == ERR_OK; i++) {
        const json_t *value = json_object_get(r->body, names[i]);
        if (value && !json_is_null(value) && !json_is_string(value))
            code = request_expected(e, names[i], value, "a text");
        else
            code = bytes_add(&text, json_string_value(value), json_string_length(value), e);
    }
    if (code == ERR_OK && !(r->prompts = json_pack("[o]", json_text(text.s, text.n))))
        code = err_nomem(e, text.n, "a prompt");
    bytes_close(&text);
    return code;
}

static err_code parse_infill(struct server_request *r, json_t *body, struct err *e)
{
    static const struct request_field fields[] = {LLAMA_FIELDS, FIELD_IGNORED("prompt"), FIELD_IGNORED("input_prefix"),
                                                  FIELD_SETTER("input_suffix", set_suffix),
                                                  FIELD_SETTER("input_extra", set_extra)};
    TRY(request_take_body(r, body, e));
    TRY(REQUEST_READ_FIELDS(r, "", body, fields, e));
    if (!r->suffix)
        return request_expected(e, "input_suffix", NULL, "the text behind the answer");
    TRY(join_prompt(r, e));
    TRY(request_check_prompts(r, e));
    return request_check(r, e);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

/* A field of an answer by the name that the client gives it; borrowed, NULL: there is none. */
static json_t *field_of(const json_t *all, const char *name)
{
    char parent[32];
    const char *slash = strchr(name, '/');
    if (!slash)
        return json_object_get(all, name);
    snprintf(parent, sizeof parent, "%.*s", (int)strcspn(name, "/"), name);
    return json_object_get(json_object_get(all, parent), slash + 1);
}

/* The fields that the client wants of an answer, under the names that it gives them. Takes over `all`. */
static json_t *choose_fields(const struct server_request *r, json_t *all)
{
    const json_t *names = json_object_get(r->body, "response_fields");
    if (json_array_size(names) == 0 || !all)
        return all;
    json_t *chosen = json_object();
    int bad = !chosen;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        json_t *value = field_of(all, name);
        bad |= value && json_object_set(chosen, name, value);
    }
    json_decref(all);
    return json_unless(bad, chosen);
}

/* What stands in each piece of an answer and in whole ones. Takes over `text`; `tokens` and `ids` may be NULL. */
static json_t *make_piece(const struct server_request *r, int64_t i, json_t *text, const json_t *tokens,
                          const json_t *ids, bool is_last)
{
    json_t *one =
        json_pack("{s:I, s:o, s:o, s:i, s:b}", "index", (json_int_t)i, "content", text, "tokens",
                  r->return_ids && ids ? json_copy((json_t *)ids) : json_array(), "id_slot", -1, "stop", is_last);
    bool has_some = r->n_logprob >= 0 && json_array_size(tokens) > 0;
    return json_unless(has_some && json_object_set_new(one, "completion_probabilities", json_copy((json_t *)tokens)),
                       one);
}

static const char *stop_type(enum answer_finish finish)
{
    return finish == FINISH_LENGTH ? "limit" : finish == FINISH_STOP_STRING ? "word" : "eos";
}

/* Adds what is known at the end, and chooses fields. Takes over and returns `piece`. */
static json_t *add_end(const struct server_request *r, const struct answer_head *head, json_t *piece,
                       enum answer_finish finish, const char *stop, const struct answer_usage *u)
{
    json_t *more = json_pack("{s:s, s:I, s:I, s:I, s:b, s:s, s:s, s:o}", "model", head->model, "tokens_predicted",
                             (json_int_t)u->n_answer, "tokens_evaluated", (json_int_t)u->n_prompt, "tokens_cached",
                             (json_int_t)u->n_cached, "truncated", 0, "stop_type", stop_type(finish), "stopping_word",
                             stop ? stop : "", "timings", openai_timings(u));
    return choose_fields(r, json_unless(json_object_update_new(piece, more), piece));
}

/* A piece with the tokens that wait. Takes over `text`. */
static json_t *take_piece(struct answer_writer *w, int64_t choice, json_t *text, bool is_last)
{
    struct told_choice *c = &w->choices[choice];
    json_t *piece = make_piece(w->r, choice, text, c->tokens, c->ids, is_last);
    return json_unless(json_array_clear(c->tokens) | json_array_clear(c->ids), piece);
}

static err_code tell(struct answer_writer *w, const struct answer_event *event, struct bytes *out, struct err *e)
{
    json_t *last;
    switch (event->kind) {
    case ANSWER_REASONING:
    case ANSWER_CONTENT:
        return writer_send(out, NULL, take_piece(w, event->choice, json_text(event->text, event->n), false), e);
    case ANSWER_TOKEN: return writer_add_token(w, event, e);
    case ANSWER_END:
        last = take_piece(w, event->choice, json_string(""), true);
        return writer_send(out, NULL, add_end(w->r, &w->head, last, event->finish, event->stop, &event->usage), e);
    case ANSWER_FAILED: return writer_send(out, NULL, openai_error(server_http_status(event->error), event->error), e);
    case ANSWER_BEGIN:
    case ANSWER_PROMPT:
    case ANSWER_PROGRESS:
    case ANSWER_CALL:
    case ANSWER_ARGUMENTS:
    case ANSWER_CALL_END: break;
    }
    return ERR_OK;
}

/* Of one answer an object, of several a list of them. */
static json_t *whole(const struct server_request *r, const struct answer_head *head,
                     const struct gathered_choice *choices)
{
    json_t *all = json_array();
    int bad = !all;
    for (int64_t i = 0; i < r->n_choices; i++) {
        const struct gathered_choice *c = &choices[i];
        struct bytes text = {0};
        bytes_put(&text, c->reasoning.s, c->reasoning.n);
        bytes_put(&text, c->content.s, c->content.n);
        json_t *piece = make_piece(r, i, text.is_short ? NULL : json_text(text.s, text.n), c->logprobs, c->ids, true);
        bad |= json_array_append_new(all, add_end(r, head, piece, c->finish, c->stop, &c->usage));
        bytes_close(&text);
    }
    if (bad || r->n_choices > 1)
        return json_unless(bad, all);
    json_t *one = json_incref(json_array_get(all, 0));
    json_decref(all);
    return one;
}

const struct protocol protocol_llama = {.name = "llama",
                                        .content_type = "text/event-stream",
                                        .parse = parse,
                                        .error = openai_error,
                                        .open = writer_open,
                                        .event = tell,
                                        .ping = writer_ping_comment,
                                        .close = writer_close,
                                        .whole = whole};

const struct protocol protocol_infill = {.name = "infill",
                                         .content_type = "text/event-stream",
                                         .parse = parse_infill,
                                         .error = openai_error,
                                         .open = writer_open,
                                         .event = tell,
                                         .ping = writer_ping_comment,
                                         .close = writer_close,
                                         .whole = whole};
