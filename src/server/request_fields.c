#include "server/request_fields.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/request_format.h"

enum { MAX_BIASES = 4096, MAX_STOPS = 64, MAX_BREAKERS = 64, MAX_TOP_LOGPROBS = 20 };
enum { MAX_LENGTH = 1000000000 }; /* tokens, more than any context has: what is above is as much */
enum { MAX_MARK_BYTES = 1024 };   /* of a stop string or a sequence breaker: all of an answer is compared with them */

struct field_path field_path(const char *parent, long i, const char *name)
{
    struct field_path p;
    char index[24] = "";
    if (i >= 0)
        snprintf(index, sizeof index, "[%ld]", i);
    const char *dot = name && (*parent || *index) ? "." : "";
    snprintf(p.s, sizeof p.s, "%s%s%s%s", parent, index, dot, name ? name : "");
    return p;
}

err_code request_take_body(struct server_request *r, json_t *body, struct err *e)
{
    r->body = body;
    if (!r->made || !r->argument_texts || !r->template_vars || !r->notes)
        return err_nomem(e, 0, "a request");
    return json_is_object(body) ? ERR_OK : err_set(e, ERR_USAGE, "the body is no JSON object");
}

json_t *request_keep(struct server_request *r, json_t *value)
{
    return json_array_append_new(r->made, value) == 0 ? value : NULL;
}

bool request_is(const char *text, const char *word)
{
    return text && !strcmp(text, word);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

err_code request_expected(struct err *e, const char *path, const json_t *value, const char *expected)
{
    static const char *const kinds[] = {[JSON_OBJECT] = "an object",
                                        [JSON_ARRAY] = "a list",
                                        [JSON_TRUE] = "true",
                                        [JSON_FALSE] = "false",
                                        [JSON_NULL] = "null"};
    enum { MAX_SHOWN = 60 };
    if (!value)
        return err_set(e, ERR_USAGE, "%s: missing; expected %s", path, expected);
    if (json_is_integer(value))
        return err_set(e, ERR_USAGE, "%s: %" JSON_INTEGER_FORMAT "; expected %s", path, json_integer_value(value),
                       expected);
    if (json_is_real(value))
        return err_set(e, ERR_USAGE, "%s: %g; expected %s", path, json_real_value(value), expected);
    if (json_is_string(value) && json_string_length(value) <= MAX_SHOWN)
        return err_set(e, ERR_USAGE, "%s: \"%s\"; expected %s", path, json_string_value(value), expected);
    if (json_is_string(value))
        return err_set(e, ERR_USAGE, "%s: a text of %zu bytes; expected %s", path, json_string_length(value), expected);
    const char *kind =
        json_is_array(value) && json_array_size(value) == 0 ? "an empty list" : kinds[json_typeof(value)];
    return err_set(e, ERR_USAGE, "%s: %s; expected %s", path, kind, expected);
}

static bool is_plain_string(const json_t *value)
{
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

err_code request_string(const json_t *object, const char *path, const char *name, const char **out, struct err *e)
{
    const json_t *value = json_object_get(object, name);
    *out = NULL;
    if (!value || json_is_null(value))
        return ERR_OK;
    if (!is_plain_string(value))
        return request_expected(e, field_path(path, -1, name).s, value, "a text without zero bytes");
    *out = json_string_value(value);
    return ERR_OK;
}

err_code request_flag(const json_t *object, const char *path, const char *name, bool *out, struct err *e)
{
    const json_t *value = json_object_get(object, name);
    if (!value || json_is_null(value))
        return ERR_OK;
    if (!json_is_boolean(value))
        return request_expected(e, field_path(path, -1, name).s, value, "true or false");
    *out = json_is_true(value);
    return ERR_OK;
}

/* Some clients write whole numbers as 4.0. */
static bool take_whole(const json_t *value, json_int_t *out)
{
    const double x = json_real_value(value);
    *out = json_is_integer(value) ? json_integer_value(value) : fabs(x) <= 0x1p53 ? (json_int_t)x : 0;
    return json_is_integer(value) || (json_is_real(value) && (double)*out == x);
}

static err_code out_of_range(const struct request_field *f, const char *path, const json_t *value, struct err *e)
{
    char expected[96];
    bool is_whole = f->kind == FIELD_INT32 || f->kind == FIELD_INT64;
    if (f->min == f->max)
        snprintf(expected, sizeof expected, "%.10g", f->min);
    else if (isinf(f->max))
        snprintf(expected, sizeof expected, "a whole number from %.10g on", f->min);
    else
        snprintf(expected, sizeof expected, "a %snumber from %.10g to %.10g", is_whole ? "whole " : "", f->min, f->max);
    return request_expected(e, path, value, expected);
}

static err_code set_number(struct server_request *r, const struct request_field *f, const char *path,
                           const json_t *value, struct err *e)
{
    void *out = (char *)r + f->offset;
    double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= f->min && x <= f->max) || (f->kind != FIELD_FLOAT && x != floor(x)))
        return out_of_range(f, path, value, e);
    if (f->kind == FIELD_FLOAT)
        *(float *)out = (float)x;
    else if (f->kind == FIELD_INT32)
        *(int *)out = (int)x;
    else
        *(int64_t *)out = (int64_t)fmin(x, MAX_LENGTH);
    return ERR_OK;
}

static err_code check_neutral(const struct request_field *f, const char *path, const json_t *value, struct err *e)
{
    char expected[96];
    bool is_flag = json_is_boolean(value);
    double x = is_flag ? json_is_true(value) : json_number_value(value);
    if ((is_flag || json_is_number(value)) && x >= f->min && x <= f->max)
        return ERR_OK;
    snprintf(expected, sizeof expected, "%s, as this server has no other way",
             is_flag ? (f->min > 0 ? "true" : "false") : f->hint);
    return request_expected(e, path, value, expected);
}

/* A text that an answer is searched for. */
static err_code check_mark(const char *path, const json_t *text, const char *expected, struct err *e)
{
    if (!is_plain_string(text))
        return request_expected(e, path, text, expected);
    if (json_string_length(text) > MAX_MARK_BYTES)
        return err_set(e, ERR_USAGE, "%s: a text of %zu bytes; expected at most %d", path, json_string_length(text),
                       MAX_MARK_BYTES);
    return ERR_OK;
}

/* Whether a value says that a field is not used. */
static bool is_nothing(const json_t *value)
{
    return json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static err_code set_field(struct server_request *r, const struct request_field *f, const char *path, json_t *value,
                          struct err *e)
{
    switch (f->kind) {
    case FIELD_FLOAT:
    case FIELD_INT32:
    case FIELD_INT64: return set_number(r, f, path, value, e);
    case FIELD_BOOL:
        if (!json_is_boolean(value))
            return request_expected(e, path, value, "true or false");
        *(bool *)((char *)r + f->offset) = json_is_true(value);
        return ERR_OK;
    case FIELD_NEUTRAL: return check_neutral(f, path, value, e);
    case FIELD_REFUSED:
        return is_nothing(value) ? ERR_OK : err_set(e, ERR_USAGE, "%s: not supported: %s", path, f->hint);
    case FIELD_SET: return f->set(r, path, value, e);
    case FIELD_UNUSED: break;
    }
    return ERR_OK;
}

/* ---- setters --------------------------------------------------------------------------------------------------- */

err_code request_set_model(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!is_plain_string(value))
        return request_expected(e, path, value, "a model's name");
    r->model = json_string_value(value);
    return ERR_OK;
}

err_code request_set_stops(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MAX_STOPS)
        return err_set(e, ERR_USAGE, "%s: %zu texts; expected at most %d", path, n, MAX_STOPS);
    json_decref(r->stops);
    if (!(r->stops = json_array()))
        return err_nomem(e, 0, path);
    for (size_t i = 0; i < n; i++) {
        json_t *stop = json_is_array(value) ? json_array_get(value, i) : value;
        TRY(check_mark(path, stop, "a text, or several in a list, without zero bytes", e));
        if (json_string_length(stop) == 0)
            server_request_note(r, "%s: an empty text is ignored", path);
        else if (json_array_append(r->stops, stop) != 0)
            return err_nomem(e, 0, path);
    }
    return ERR_OK;
}

static err_code set_breakers(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    size_t n = json_array_size(value);
    if (!json_is_array(value) || n > MAX_BREAKERS)
        return request_expected(e, path, value, "a list of at most 64 texts");
    mem_free(r->breakers);
    if (!(r->breakers = mem_calloc(n + 1, sizeof *r->breakers)))
        return err_nomem(e, n, path);
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_array_get(value, i);
        TRY(check_mark(path, text, "a list of texts without zero bytes", e));
        r->breakers[i] = json_string_value(text);
    }
    r->sampling.dry_breakers = r->breakers;
    r->sampling.n_dry_breakers = (int)n;
    return ERR_OK;
}

/* llama.cpp's servers take false for "never". */
static err_code add_bias(struct server_request *r, const char *path, long long id, const json_t *value, struct err *e)
{
    double bias = json_is_false(value) ? -INFINITY : json_number_value(value);
    if (id < 0 || id > INT32_MAX || !(json_is_number(value) || json_is_false(value)))
        return err_set(e, ERR_USAGE, "%s: expected tokens' ids and numbers, such as {\"15043\": -100}", path);
    r->biases[r->sampling.n_logit_biases++] = (moebius_logit_bias){(int32_t)id, (float)bias};
    return ERR_OK;
}

/* {"ID": X}, or [[ID, X], ...]. */
static err_code set_biases(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    size_t n = json_is_array(value) ? json_array_size(value) : json_object_size(value);
    const char *key;
    json_t *bias;
    if (!json_is_object(value) && !json_is_array(value))
        return request_expected(e, path, value, "an object, such as {\"15043\": -100}");
    if (n > MAX_BIASES)
        return err_set(e, ERR_USAGE, "%s: %zu tokens; expected at most %d", path, n, MAX_BIASES);
    mem_free(r->biases);
    if (!(r->biases = mem_calloc(n + 1, sizeof *r->biases)))
        return err_nomem(e, n, path);
    r->sampling.logit_biases = r->biases;
    r->sampling.n_logit_biases = 0;
    json_object_foreach(value, key, bias)
    {
        char *end;
        errno = 0;
        long long id = strtoll(key, &end, 10);
        TRY(add_bias(r, path, end == key || *end || errno ? -1 : id, bias, e));
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *pair = json_array_get(value, i), *id = json_array_get(pair, 0);
        TRY(add_bias(r, path, json_is_integer(id) ? json_integer_value(id) : -1, json_array_get(pair, 1), e));
    }
    return ERR_OK;
}

/* Some clients draw 64 bits; what 63 don't hold has come as a real number. */
static err_code set_seed(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const double x = json_real_value(value);
    json_int_t seed;
    if (x >= 0x1p63 && x <= 0x1p64)
        seed = (json_int_t)(uint64_t)fmin(x, 0x1.fffffffffffffp63);
    else if (!take_whole(value, &seed))
        return request_expected(e, path, value, "a whole number");
    r->sampling.seed = (uint64_t)seed;
    r->has_seed = seed != -1; /* -1: another one each time */
    return ERR_OK;
}

static err_code set_mirostat(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    json_int_t kind;
    if (!take_whole(value, &kind) || (kind != 0 && kind != 2))
        return request_expected(e, path, value, "0 (off) or 2 (its second version)");
    r->sampling.mirostat = (int)kind;
    return ERR_OK;
}

/* Log-probabilities: Chat's pair of a flag and a number; that of Completions is a number. */
static err_code set_logprobs(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    json_int_t n = 0; /* true */
    if (!json_is_boolean(value) && (!take_whole(value, &n) || n < 0 || n > MAX_TOP_LOGPROBS))
        return request_expected(e, path, value, "true, false, or a whole number from 0 to 20");
    if (!json_is_false(value) && r->n_logprob < (int)n)
        r->n_logprob = (int)n;
    return ERR_OK;
}

static err_code set_top_logprobs(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    json_int_t n;
    if (!take_whole(value, &n) || n < 0 || n > MAX_TOP_LOGPROBS)
        return request_expected(e, path, value, "a whole number from 0 to 20");
    if (n > 0 && r->n_logprob < (int)n)
        r->n_logprob = (int)n;
    return ERR_OK;
}

static err_code set_stream_options(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    static const struct request_field fields[] = {FIELD_FLAG("include_usage", stream_usage),
                                                  FIELD_IGNORED("continuous_usage_stats"),
                                                  FIELD_IGNORED("include_obfuscation")};
    return REQUEST_READ_MEMBERS(r, path, value, fields, e);
}

/* What the request's other fields and the model's vocabulary say: text that a client puts in their place would count as
 * the template's own, special tokens with it. */
static bool is_own_var(const char *name)
{
    static const char *const own[] = {"messages",  "tools",    "add_generation_prompt", "bos_token", "eos_token",
                                      "unk_token", "pad_token"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i]))
            return true;
    return false;
}

static err_code set_template_vars(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const char *name;
    json_t *var;
    if (!json_is_object(value))
        return request_expected(e, path, value, "an object");
    json_object_foreach(value, name, var)
    {
        if (is_own_var(name))
            server_request_note(r, "%s.%s: ignored, as the server gives it", path, name);
        else if (json_object_set(r->template_vars, name, var) != 0)
            return err_nomem(e, 0, path);
    }
    return ERR_OK;
}

static err_code set_no_generation_prompt(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    r->continues_message |= json_is_false(value);
    return ERR_OK;
}

/* false: what follows hides the reasoning. */
static err_code set_shows_reasoning(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_boolean(value))
        return request_expected(e, path, value, "true or false");
    r->hides_reasoning |= json_is_false(value);
    return ERR_OK;
}

/* ---- the table of all protocols -------------------------------------------------------------------------------- */

#define FLOAT(name, member, min, max) FIELD_NUMBER(name, FIELD_FLOAT, sampling.member, min, max)
#define INT(name, member, min, max)   FIELD_NUMBER(name, FIELD_INT32, sampling.member, min, max)
#define LENGTH(name)                  FIELD_LENGTH(name, max_tokens, -1)
#define BUDGET(name)                  FIELD_LENGTH(name, reasoning_budget, -1)
#define NEUTRAL(name, min, max, words)                                                                                 \
    {                                                                                                                  \
        name, FIELD_NEUTRAL, 0, min, max, 0, words                                                                     \
    }

static const struct request_field shared[] = {
    FIELD_SETTER("model", request_set_model),
    FIELD_FLAG("stream", stream),
    FIELD_SETTER("stream_options", set_stream_options),
    FIELD_FLAG("return_progress", return_progress),
    FIELD_FLAG("return_tokens", return_ids),
    FIELD_FLAG("return_token_ids", return_ids),

    FLOAT("temperature", temperature, 0, 100),
    INT("top_k", top_k, -1, 1e9),
    FLOAT("top_p", top_p, 0, 1),
    FLOAT("min_p", min_p, 0, 1),
    FLOAT("typical_p", typical_p, 0, 1),
    FLOAT("typical", typical_p, 0, 1),
    FLOAT("xtc_probability", xtc_probability, 0, 1),
    FLOAT("xtc_threshold", xtc_threshold, 0, 1),
    FLOAT("repeat_penalty", repeat_penalty, 0.01, 100),
    FLOAT("repetition_penalty", repeat_penalty, 0.01, 100),
    FLOAT("presence_penalty", presence_penalty, -100, 100),
    FLOAT("frequency_penalty", frequency_penalty, -100, 100),
    INT("repeat_last_n", repeat_last_n, -1, 1048576),
    FLOAT("dry_multiplier", dry_multiplier, 0, 100),
    FLOAT("dry_base", dry_base, 1, 100),
    INT("dry_allowed_length", dry_allowed_length, 1, 1e6),
    INT("dry_penalty_last_n", dry_last_n, -1, 1048576),
    FIELD_SETTER("dry_sequence_breakers", set_breakers),
    FIELD_SETTER("mirostat", set_mirostat),
    FLOAT("mirostat_tau", mirostat_tau, 0, 100),
    FLOAT("mirostat_eta", mirostat_eta, 0, 1),
    FIELD_SETTER("seed", set_seed),
    FIELD_SETTER("random_seed", set_seed),
    FIELD_SETTER("logit_bias", set_biases),
    FIELD_SETTER("logprobs", set_logprobs),
    FIELD_SETTER("top_logprobs", set_top_logprobs),
    FIELD_SETTER("n_probs", set_top_logprobs),
    NEUTRAL("dynatemp_range", 0, 0, "0"),
    NEUTRAL("top_n_sigma", -1e9, 0, "0 or less (off)"),
    NEUTRAL("tfs_z", 1, 1e9, "1 (off)"),
    NEUTRAL("top_a", 0, 0, "0 (off)"),
    NEUTRAL("min_tokens", 0, 0, "0"),
    NEUTRAL("best_of", 0, 1, "1"),
    NEUTRAL("use_beam_search", 0, 0, "false"),
    NEUTRAL("skip_special_tokens", 1, 1, "true"),
    FIELD_NONE("stop_token_ids", "use stop"),
    FIELD_NONE("bad_words", "use logit_bias"),
    FIELD_NONE("prompt_logprobs", "use echo and logprobs, in a request of completions"),
    FIELD_NONE("logits_processors", "use the sampling fields"),
    FIELD_NONE("truncate_prompt_tokens", "a prompt that is too long is refused"),

    LENGTH("max_tokens"),
    LENGTH("max_completion_tokens"),
    LENGTH("max_output_tokens"),
    LENGTH("max_new_tokens"),
    LENGTH("n_predict"),
    FIELD_LENGTH("t_max_predict_ms", max_answer_ms, -1),
    FIELD_NUMBER("n", FIELD_INT64, n_choices, 1, REQUEST_MAX_CHOICES),
    FIELD_SETTER("stop", request_set_stops),
    FIELD_FLAG("ignore_eos", ignore_eos),

    FIELD_SETTER("json_schema", request_set_schema),
    FIELD_SETTER("grammar", request_set_grammar),
    FIELD_SETTER("regex", request_set_regex),
    FIELD_SETTER("guided_json", request_set_schema),
    FIELD_SETTER("guided_grammar", request_set_grammar),
    FIELD_SETTER("guided_regex", request_set_regex),
    FIELD_SETTER("guided_choice", request_set_choice),
    FIELD_SETTER("structured_outputs", request_set_structured),

    FIELD_SETTER("chat_template_kwargs", set_template_vars),
    FIELD_SETTER("reasoning_effort", request_set_effort),
    FIELD_SETTER("reasoning", request_set_reasoning),
    FIELD_SETTER("thinking", request_set_thinking),
    FIELD_SETTER("enable_thinking", request_set_thinks),
    FIELD_SETTER("include_reasoning", set_shows_reasoning),
    BUDGET("reasoning_budget"),
    BUDGET("reasoning_budget_tokens"),
    BUDGET("thinking_budget"),
    BUDGET("thinking_budget_tokens"),
    BUDGET("thinking_token_budget"),
    FIELD_FLAG("continue_final_message", continues_message),
    FIELD_SETTER("add_generation_prompt", set_no_generation_prompt),

    FIELD_IGNORED("user"),
    FIELD_IGNORED("metadata"),
    FIELD_IGNORED("store"),
    FIELD_IGNORED("service_tier"),
    FIELD_IGNORED("safety_identifier"),
    FIELD_IGNORED("prompt_cache_key"),
    FIELD_IGNORED("prompt_cache_retention"),
    FIELD_IGNORED("prompt_cache_options"),
    FIELD_IGNORED("cache_prompt"),
    FIELD_IGNORED("cache_control"),
    FIELD_IGNORED("id_slot"),
    FIELD_IGNORED("slot_id"),
    FIELD_IGNORED("n_keep"),
    FIELD_IGNORED("min_keep"),
    FIELD_IGNORED("n_discard"),
    FIELD_IGNORED("dynatemp_exponent"),
    FIELD_IGNORED("timings_per_token"),
    FIELD_IGNORED("reasoning_format"),
    FIELD_IGNORED("request_id"),
    FIELD_IGNORED("priority"),
};

static const struct request_field *find_field(const struct request_field *fields, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

static err_code read_fields(struct server_request *r, const char *path, json_t *object, const struct request_field *own,
                            size_t n_own, const struct request_field *common, size_t n_common, struct err *e)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const struct request_field *f = find_field(own, n_own, name);
        if (!f)
            f = find_field(common, n_common, name);
        if (json_is_null(value))
            continue;
        if (!f)
            server_request_note(r, "%s: unknown and ignored", field_path(path, -1, name).s);
        else
            TRY(set_field(r, f, field_path(path, -1, name).s, value, e));
    }
    return ERR_OK;
}

err_code request_read_fields(struct server_request *r, const char *path, json_t *object,
                             const struct request_field *own, size_t n_own, struct err *e)
{
    return read_fields(r, path, object, own, n_own, shared, sizeof shared / sizeof *shared, e);
}

err_code request_read_members(struct server_request *r, const char *path, json_t *object,
                              const struct request_field *own, size_t n_own, struct err *e)
{
    if (!json_is_object(object))
        return request_expected(e, path, object, "an object");
    return read_fields(r, path, object, own, n_own, NULL, 0, e);
}

err_code request_check(struct server_request *r, struct err *e)
{
    const json_t *top = json_object_get(r->body, "top_logprobs"), *wants = json_object_get(r->body, "logprobs");
    if (json_number_value(top) > 0 && json_is_false(wants))
        return err_set(e, ERR_USAGE, "top_logprobs: given with logprobs false; expected logprobs true");
    if (r->sampling.top_k < 0)
        r->sampling.top_k = 0; /* -1: all */
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (r->continues_message && (!request_is(role, "assistant") || json_object_get(last, "tool_calls")))
        return err_set(e, ERR_USAGE, "continue_final_message: the last message is no text of the assistant's");
    return request_check_reasoning(r, e);
}
