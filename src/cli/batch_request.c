#include "cli/batch_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/chat_prompt.h"
#include "base/json_text.h"

enum { MAX_NAME = 64 };

char *batch_request_key(const json_t *id)
{
    return json_write(id, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII, NULL);
}

err_code batch_request_number(struct batch_request *r, int64_t line, struct err *e)
{
    r->line = line;
    r->id = json_integer(line);
    return r->id ? ERR_OK : err_nomem(e, sizeof(json_int_t), "a request");
}

void batch_request_close(struct batch_request *r)
{
    json_decref(r->json);
    json_decref(r->id);
    *r = (struct batch_request){0};
}

/* ---- fields -------------------------------------------------------------------------------------------------- */

static err_code set_number(const struct option *o, const char *name, const json_t *value, struct err *e)
{
    if (!json_is_number(value))
        return err_set(e, ERR_FORMAT, "%s: expected a number", name);
    char *text = json_write(value, JSON_ENCODE_ANY, NULL);
    err_code code = text ? options_set(o, name, text, e) : err_nomem(e, MAX_NAME, name);
    mem_free(text);
    return code;
}

static err_code add_string(const struct option *o, const char *name, const json_t *value, struct err *e)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return err_set(e, ERR_FORMAT, "%s: expected a text, or several in a list, without zero bytes", name);
    return options_set(o, name, json_string_value(value), e);
}

/* In place of the defaults. */
static err_code set_list(const struct option *o, const char *name, const json_t *value, struct err *e)
{
    *(struct option_list *)o->out = (struct option_list){0};
    if (!json_is_array(value))
        return add_string(o, name, value, e);
    for (size_t i = 0; i < json_array_size(value); i++)
        TRY(add_string(o, name, json_array_get(value, i), e));
    return ERR_OK;
}

static err_code set_flag(const struct option *o, const char *name, const json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return err_set(e, ERR_FORMAT, "%s: expected true or false", name);
    *(bool *)o->out = json_is_true(value);
    return ERR_OK;
}

static err_code set_option(const struct option *o, const char *name, const json_t *value, struct err *e)
{
    switch (o->kind) {
    case OPT_FLAG: return set_flag(o, name, value, e);
    case OPT_LIST: return set_list(o, name, value, e);
    default: return set_number(o, name, value, e);
    }
}

/* The command-line option with a field's name: "top_k" is --top-k. NULL: there is none. */
static const struct option *find_option(const struct option *options, int n_option, const char *name)
{
    char word[MAX_NAME] = "--";
    if (!strcmp(name, "temperature"))
        name = "temp";
    if (strlen(name) + sizeof "--" > sizeof word)
        return NULL;
    strcpy(word + 2, name);
    for (char *p = word; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return strchr(name, '-') ? NULL : options_find(options, n_option, word, strlen(word));
}

static err_code set_prompt(struct batch_request *r, const json_t *value, struct err *e)
{
    r->text = json_string_value(value);
    r->n_text = json_string_length(value);
    return r->text ? ERR_OK : err_set(e, ERR_FORMAT, "prompt: expected a text");
}

static err_code set_messages(struct batch_request *r, const json_t *value, struct err *e)
{
    r->messages = value;
    if (!chat_prompt_is_messages(value))
        return err_set(e, ERR_FORMAT, "messages: expected a list of objects with role and content");
    return ERR_OK;
}

static err_code set_tokens(struct batch_request *r, const json_t *value, struct err *e)
{
    bool good = json_is_array(value);
    r->tokens = value;
    for (size_t i = 0; good && i < json_array_size(value); i++)
        good = json_is_integer(json_array_get(value, i));
    return good ? ERR_OK : err_set(e, ERR_FORMAT, "tokens: expected a list of whole numbers");
}

/* One token of {"ID": X}. */
static err_code add_bias(struct sampling_options *o, const char *key, const json_t *value, struct err *e)
{
    char *end;
    errno = 0;
    long long id = strtoll(key, &end, 10);
    if (end == key || *end || errno || id < 0 || id > INT32_MAX || !json_is_number(value))
        return err_set(e, ERR_FORMAT, "logit_bias: expected tokens' ids and numbers, such as {\"15043\": -100}");
    if (o->sampler.n_logit_biases == SAMPLING_MAX_BIAS)
        return err_set(e, ERR_FORMAT, "logit_bias: at most %d of them", SAMPLING_MAX_BIAS);
    o->biases[o->sampler.n_logit_biases++] =
        (moebius_logit_bias){.id = (int32_t)id, .bias = (float)json_number_value(value)};
    return ERR_OK;
}

/* In place of the defaults. */
static err_code set_biases(struct sampling_options *o, const json_t *value, struct err *e)
{
    const char *key;
    json_t *bias;
    o->sampler.n_logit_biases = 0;
    if (!json_is_object(value))
        return err_set(e, ERR_FORMAT, "logit_bias: expected an object, such as {\"15043\": -100}");
    json_object_foreach((json_t *)value, key, bias) TRY(add_bias(o, key, bias, e));
    return ERR_OK;
}

static err_code set_form(struct batch_request *r, const char *name, struct err *e)
{
    if (r->form)
        return err_set(e, ERR_FORMAT, "%s: a second form for the answer beside %s; expected one", name, r->form);
    r->form = name;
    return ERR_OK;
}

static err_code set_grammar(struct batch_request *r, const json_t *value, struct err *e)
{
    r->gbnf = json_string_value(value);
    if (!r->gbnf || strlen(r->gbnf) != json_string_length(value))
        return err_set(e, ERR_FORMAT, "grammar: expected a grammar in GBNF, a text");
    return set_form(r, "grammar", e);
}

static err_code set_schema(struct batch_request *r, const char *name, const json_t *value, struct err *e)
{
    r->schema = value;
    if (!json_is_object(value))
        return err_set(e, ERR_FORMAT, "%s: expected a JSON schema, an object", name);
    return set_form(r, name, e);
}

/* OpenAI's: {"type": "json_schema", "json_schema": {"schema": {...}, "strict": false}}, or "json_object", or "text". */
static err_code set_response_format(struct batch_request *r, const json_t *value, struct err *e)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *inner = json_object_get(value, "json_schema");
    if (type && !strcmp(type, "text"))
        return ERR_OK;
    if (type && !strcmp(type, "json_object"))
        return set_form(r, "response_format", e);
    if (!type || strcmp(type, "json_schema") != 0)
        return err_set(e, ERR_FORMAT, "response_format.type: expected text, json_object or json_schema");
    r->is_lenient = json_is_false(json_object_get(inner, "strict"));
    return set_schema(r, "response_format.json_schema.schema", json_object_get(inner, "schema"), e);
}

static err_code set_fields(struct batch_request *r, json_t *unknown, struct err *e)
{
    const struct option options[] = {
        SAMPLING_OPTIONS(r->sampling),
        {"--max-tokens", OPT_INT, &r->max_tokens, "N", "", -1, 1e9, 0},
        {"--stop", OPT_LIST, &r->stops, "TEXT", "", 0, 0, 0},
        {"--ignore-eos", OPT_FLAG, &r->ignore_eos, "", "", 0, 0, 0},
    };
    const char *name;
    json_t *value;
    json_object_foreach(r->json, name, value)
    {
        const struct option *o = find_option(options, N_OPTIONS(options), name);
        if (json_is_null(value) || !strcmp(name, "id"))
            continue;
        if (!strcmp(name, "prompt"))
            TRY(set_prompt(r, value, e));
        else if (!strcmp(name, "messages"))
            TRY(set_messages(r, value, e));
        else if (!strcmp(name, "tokens"))
            TRY(set_tokens(r, value, e));
        else if (!strcmp(name, "logit_bias"))
            TRY(set_biases(&r->sampling, value, e));
        else if (!strcmp(name, "grammar"))
            TRY(set_grammar(r, value, e));
        else if (!strcmp(name, "json_schema"))
            TRY(set_schema(r, name, value, e));
        else if (!strcmp(name, "response_format"))
            TRY(set_response_format(r, value, e));
        else if (o)
            TRY(set_option(o, name, value, e));
        else if (!json_object_get(unknown, name))
            (void)json_object_set_new(unknown, name, json_true()); /* without memory a warning is missing */
    }
    return ERR_OK;
}

/* ---- the line ------------------------------------------------------------------------------------------------ */

/* Takes the request's own id, if it has one. */
static err_code take_id(struct batch_request *r, struct err *e)
{
    json_t *id = json_object_get(r->json, "id");
    if (!id || json_is_null(id))
        return ERR_OK;
    if (!json_is_string(id) && !json_is_integer(id))
        return err_set(e, ERR_FORMAT, "id: expected a text or a whole number");
    json_decref(r->id);
    r->id = json_incref(id);
    return ERR_OK;
}

static err_code parse(struct batch_request *r, const char *text, size_t n, json_t *unknown, struct err *e)
{
    json_error_t error;
    r->json = json_read(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!r->json && !*error.text)
        return err_nomem(e, n, "a request");
    if (!r->json)
        return err_set(e, ERR_FORMAT, "expected a JSON object: column %d: %s", error.column, error.text);
    if (!json_is_object(r->json))
        return err_set(e, ERR_FORMAT, "expected a JSON object, not a list");
    TRY(take_id(r, e));
    r->sampling.bias_texts.n = 0; /* those of the defaults have been resolved already */
    TRY(set_fields(r, unknown, e));
    TRY(cli_check_sampling(&r->sampling, e));
    if (!!r->text + !!r->messages + !!r->tokens != 1)
        return err_set(e, ERR_FORMAT, "expected one of prompt, messages and tokens");
    return ERR_OK;
}

err_code batch_request_parse(struct batch_request *r, const struct batch_request *defaults, const char *text, size_t n,
                             int64_t line, json_t *unknown, struct err *e)
{
    *r = *defaults;
    TRY(batch_request_number(r, line, e));
    return parse(r, text, n, unknown, e);
}
