/* Text to tokens and back, and what a template makes of messages. */
#include <string.h>

#include "base/json_text.h"
#include "server/call.h"
#include "server/routes.h"
#include "server/writer.h"

typedef err_code token_fn(struct call *c, struct model *m, const json_t *body, json_t **out, struct err *e);

static err_code from_public(struct err *e, const moebius_error *error)
{
    return err_set(e, error->status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "%s", error->text);
}

/* Takes `value` over. */
static void reply(struct call *c, err_code code, json_t *value, const struct err *e)
{
    if (code == ERR_OK) {
        call_json(c, 200, value);
    } else {
        json_decref(value);
        call_error(c, e);
    }
    http_reply(c->x);
}

static err_code with_model(struct call *c, token_fn *fn, json_t **out, struct err *e)
{
    json_t *body;
    struct model *m;
    TRY(call_body(c, &body, e));
    err_code code = call_take_model(c, json_string_value(json_object_get(body, "model")), &m, e);
    if (code == ERR_OK) {
        code = fn(c, m, body, out, e);
        models_give_back(m);
    }
    json_decref(body);
    return code;
}

static void handle(struct call *c, token_fn *fn)
{
    struct err e = {0};
    json_t *out = NULL;
    err_code code = with_model(c, fn, &out, &e);
    reply(c, code, out, &e);
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* As llama.cpp's server has it: a piece that is a part of a character is a list of its bytes. */
static json_t *piece_of(const moebius_vocab *vocab, int32_t id)
{
    size_t n;
    const char *piece = moebius_token_piece(vocab, id, true, &n);
    json_t *text = json_stringn(piece, n); /* NULL: it is not UTF-8 */
    return json_pack("{s:i, s:o}", "id", (int)id, "piece", text ? text : writer_byte_list(piece, n));
}

static err_code tokenize(struct call *c, struct model *m, const json_t *body, json_t **out, struct err *e)
{
    moebius_error error;
    int32_t *ids;
    size_t n;
    const json_t *content = json_object_get(body, "content"), *special = json_object_get(body, "parse_special");
    bool with_pieces = json_is_true(json_object_get(body, "with_pieces"));
    if (!json_is_string(content))
        return err_set(e, ERR_USAGE, "content: expected a string");
    if (moebius_tokenize(m->vocab, json_string_value(content), json_string_length(content),
                         json_is_true(json_object_get(body, "add_special")), !special || json_is_true(special), &ids,
                         &n, &error) != MOEBIUS_OK)
        return from_public(e, &error);
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, with_pieces ? piece_of(m->vocab, ids[i]) : json_integer(ids[i])) == 0;
    moebius_free(ids);
    if (good)
        *out = json_pack("{s:O}", "tokens", list);
    json_decref(list);
    return *out ? ERR_OK : err_nomem(e, n, "tokens");
}

static err_code detokenize(struct call *c, struct model *m, const json_t *body, json_t **out, struct err *e)
{
    struct prompt ids = {0};
    const json_t *tokens = json_object_get(body, "tokens");
    moebius_error error;
    char *text;
    size_t n;
    if (!json_is_array(tokens))
        return err_set(e, ERR_USAGE, "tokens: expected an array of token ids");
    err_code code = prompt_take_ids(&ids, m, "tokens", tokens, e);
    if (code == ERR_OK && moebius_detokenize(m->vocab, ids.ids, ids.n, true, &text, &n, &error) != MOEBIUS_OK)
        code = from_public(e, &error);
    if (code == ERR_OK) {
        *out = json_pack("{s:o}", "content", json_text(text, n));
        code = *out ? ERR_OK : err_nomem(e, n, "a text");
        moebius_free(text);
    }
    prompt_close(&ids);
    return code;
}

void route_tokenize(struct call *c)
{
    handle(c, tokenize);
}

void route_detokenize(struct call *c)
{
    handle(c, detokenize);
}

/* ---- prompts --------------------------------------------------------------------------------------------------- */

typedef err_code prompt_fn(struct prompt *p, const struct model *m, const struct server_request *r,
                           const moebius_template_var *defaults, size_t n_defaults, struct err *e);

/* The prompt of a request in the call's protocol. */
static err_code make_prompt(struct call *c, prompt_fn *fn, struct server_request *r, struct prompt *p, struct err *e)
{
    json_t *body;
    struct model *m;
    const struct server_options *o = c->server->options;
    TRY(call_body(c, &body, e));
    TRY(c->protocol->parse(r, body, e));
    server_log_notes(c->server, r->notes);
    TRY(call_take_model(c, r->model, &m, e));
    err_code code = fn(p, m, r, o->vars, o->n_vars, e);
    models_give_back(m);
    return code;
}

void route_count_tokens(struct call *c)
{
    struct err e = {0};
    struct server_request r;
    struct prompt p = {0};
    server_request_init(&r);
    err_code code = make_prompt(c, prompt_make, &r, &p, &e);
    reply(c, code, json_pack("{s:I}", "input_tokens", (json_int_t)p.n), &e);
    prompt_close(&p);
    server_request_close(&r);
}

void route_apply_template(struct call *c)
{
    struct err e = {0};
    struct server_request r;
    struct prompt p = {0};
    server_request_init(&r);
    err_code code = make_prompt(c, prompt_render, &r, &p, &e);
    reply(c, code, json_pack("{s:o}", "prompt", json_text(p.text.s ? p.text.s : "", p.text.n)), &e);
    prompt_close(&p);
    server_request_close(&r);
}
