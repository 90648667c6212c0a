/* Routes that convert text to tokens and back, and that render a template. */
#include <string.h>

#include "base/json_text.h"
#include "server/call.h"
#include "server/routes.h"
#include "server/writer.h"

static err_code from_public(struct err *e, const moebius_error *error)
{
    return err_set(e, error->status == MOEBIUS_NOMEM ? ERR_NOMEM : ERR_USAGE, "%s", error->text);
}

/* Takes `value` over. */
static err_code reply(struct call *c, json_t *value)
{
    call_json(c, 200, value);
    http_reply(c->x);
    return ERR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* A token in the form of llama.cpp's server. A piece that is no whole UTF-8 becomes a list of its bytes. */
static json_t *piece_of(const moebius_vocab *vocab, int32_t id)
{
    size_t n;
    const char *piece = moebius_token_piece(vocab, id, true, &n);
    json_t *text = json_stringn(piece, n); /* NULL: it is not UTF-8 */
    return json_pack("{s:i, s:o}", "id", (int)id, "piece", text ? text : writer_byte_list(piece, n));
}

static bool is_missing(const json_t *value)
{
    return !value || json_is_null(value);
}

/* `content` is in llama.cpp's form, `prompt` in that of vLLM's server, where the token that begins a text is added
 * unless the request says otherwise. */
static err_code tokenize(struct call *c, struct served_model *m, struct err *e)
{
    const json_t *body = c->request.body;
    moebius_error error;
    int32_t *ids;
    size_t n;
    const json_t *content = json_object_get(body, "content"), *prompt = json_object_get(body, "prompt");
    bool is_prompt = is_missing(content) && !is_missing(prompt), adds_special = is_prompt;
    bool with_pieces = false, parses_special = true;
    const json_t *text = is_prompt ? prompt : content;
    if (!json_is_string(text))
        return err_set(e, ERR_USAGE, "%s: expected a string", is_prompt ? "prompt" : "content");
    TRY(request_flag(body, "", is_prompt ? "add_special_tokens" : "add_special", &adds_special, e));
    TRY(request_flag(body, "", "parse_special", &parses_special, e));
    TRY(request_flag(body, "", "with_pieces", &with_pieces, e));
    if (moebius_tokenize(m->vocab, json_string_value(text), json_string_length(text), adds_special, parses_special,
                         &ids, &n, &error) != MOEBIUS_OK)
        return from_public(e, &error);
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, with_pieces ? piece_of(m->vocab, ids[i]) : json_integer(ids[i])) == 0;
    moebius_free(ids);
    json_t *out = good ? json_pack("{s:O, s:I, s:I}", "tokens", list, "count", (json_int_t)n, "max_model_len",
                                   (json_int_t)texts_n_ctx(m->texts))
                       : NULL;
    json_decref(list);
    return reply(c, out);
}

static err_code detokenize(struct call *c, struct served_model *m, struct err *e)
{
    struct prompt ids = {0};
    const json_t *tokens = json_object_get(c->request.body, "tokens");
    moebius_error error;
    char *text;
    size_t n;
    if (!json_is_array(tokens))
        return err_set(e, ERR_USAGE, "tokens: expected an array of token ids");
    err_code code = prompt_take_ids(&ids, m, "tokens", tokens, e);
    if (code == ERR_OK && moebius_detokenize(m->vocab, ids.ids, ids.n, true, &text, &n, &error) != MOEBIUS_OK)
        code = from_public(e, &error);
    if (code == ERR_OK) {
        code = reply(c, json_pack("{s:o, s:o}", "content", json_text(text, n), "prompt", json_text(text, n)));
        moebius_free(text);
    }
    prompt_close(&ids);
    return code;
}

static err_code read_body(struct call *c, struct served_model **m, struct err *e)
{
    const char *name;
    TRY(call_body(c, &c->request.body, e));
    TRY(request_string(c->request.body, "", "model", &name, e));
    return call_find_model(c, name, m, e);
}

static void handle(struct call *c, call_work_fn *work)
{
    struct err e = {0};
    struct served_model *m;
    if (read_body(c, &m, &e) == ERR_OK)
        call_with_model(c, m, work);
    else
        call_fail(c, &e);
}

void route_tokenize(struct call *c)
{
    handle(c, tokenize);
}

void route_detokenize(struct call *c)
{
    handle(c, detokenize);
}

static json_t *special_token(const moebius_vocab *vocab, int32_t id)
{
    size_t n;
    const char *piece = id >= 0 ? moebius_token_piece(vocab, id, true, &n) : NULL;
    return piece ? json_text(piece, n) : json_null();
}

/* As vLLM's server has it, for clients that count tokens and apply the template themselves. */
static err_code tokenizer_info(struct call *c, struct served_model *m, struct err *e)
{
    const char *source = models_template(m);
    return reply(c, json_pack("{s:o, s:o, s:b, s:o, s:I}", "bos_token",
                              special_token(m->vocab, moebius_token_bos(m->vocab)), "eos_token",
                              special_token(m->vocab, moebius_token_eos(m->vocab)), "add_bos_token",
                              moebius_vocab_adds_bos(m->vocab), "chat_template",
                              source ? json_text(source, strlen(source)) : json_null(), "model_max_length",
                              (json_int_t)texts_n_ctx(m->texts)));
}

void route_tokenizer_info(struct call *c)
{
    struct err e = {0};
    struct served_model *m;
    if (call_find_model(c, NULL, &m, &e) == ERR_OK)
        call_with_model(c, m, tokenizer_info);
    else
        call_fail(c, &e);
}

/* ---- prompts --------------------------------------------------------------------------------------------------- */

static void handle_request(struct call *c, call_work_fn *work)
{
    struct err e = {0};
    struct served_model *m;
    err_code code = call_read_request(c, &e);
    if (code == ERR_OK)
        code = call_find_model(c, c->request.model, &m, &e);
    if (code == ERR_OK)
        call_with_model(c, m, work);
    else
        call_fail(c, &e);
}

static err_code count(struct call *c, struct served_model *m, struct err *e)
{
    const struct server_options *o = c->server->options;
    struct prompt p = {0};
    const char *object = c->protocol == &protocol_responses ? "response.input_tokens" : NULL;
    err_code code = prompt_make(&p, m, &c->request, 0, o->vars, o->n_vars, e);
    if (code == ERR_OK)
        code = reply(c, json_pack("{s:s*, s:I}", "object", object, "input_tokens", (json_int_t)p.n));
    prompt_close(&p);
    return code;
}

static err_code render(struct call *c, struct served_model *m, struct err *e)
{
    const struct server_options *o = c->server->options;
    struct prompt p = {0};
    err_code code = prompt_render(&p, m, &c->request, o->vars, o->n_vars, e);
    if (code == ERR_OK)
        code = reply(c, json_pack("{s:o}", "prompt", json_text(p.text.s ? p.text.s : "", p.text.n)));
    prompt_close(&p);
    return code;
}

void route_count_tokens(struct call *c)
{
    handle_request(c, count);
}

void route_apply_template(struct call *c)
{
    handle_request(c, render);
}
