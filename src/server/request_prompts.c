/* Prompts that go on as they are: a text, token ids, or a list of these, each with the same number of answers. */
#include "server/request_fields.h"

enum { MAX_ANSWERS = 1024 }; /* to all prompts of a request */

static const char expected[] = "a text, or a list of tokens' ids";

struct field_path request_prompt_path(const struct server_request *r, size_t i)
{
    return field_path(r->messages ? "messages" : "prompt", server_request_n_prompts(r) > 1 ? (long)i : -1, NULL);
}

static bool is_ids(const json_t *value)
{
    bool good = json_array_size(value) > 0;
    for (size_t i = 0; good && i < json_array_size(value); i++) {
        json_int_t id = json_integer_value(json_array_get(value, i));
        good = json_is_integer(json_array_get(value, i)) && id >= 0 && id <= INT32_MAX;
    }
    return good;
}

err_code request_set_prompts(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    const json_t *first = json_array_get(value, 0);
    bool is_list = json_is_string(first) || json_is_array(first);
    size_t n = is_list ? json_array_size(value) : 1;
    if (n > MAX_ANSWERS)
        return err_set(e, ERR_USAGE, "%s: %zu prompts; expected at most %d", path, n, MAX_ANSWERS);
    json_decref(r->prompts);
    if (!(r->prompts = is_list ? json_incref(value) : json_pack("[O]", value)))
        return err_nomem(e, 0, path);
    for (size_t i = 0; i < n; i++) {
        const json_t *prompt = json_array_get(r->prompts, i);
        if (!json_is_string(prompt) && !is_ids(prompt))
            return request_expected(e, request_prompt_path(r, i).s, prompt, expected);
    }
    return ERR_OK;
}

err_code request_set_suffix(struct server_request *r, const char *path, json_t *value, struct err *e)
{
    if (!json_is_string(value))
        return request_expected(e, path, value, "the text behind the answer");
    r->suffix = json_string_length(value) ? value : NULL;
    return ERR_OK;
}

err_code request_check_prompts(struct server_request *r, struct err *e)
{
    if (!r->prompts)
        return request_expected(e, "prompt", NULL, expected);
    int64_t n_prompts = server_request_n_prompts(r), n_each = r->n_choices;
    if (n_each * n_prompts > MAX_ANSWERS)
        return err_set(e, ERR_USAGE, "%s: %lld answers to each of %lld prompts; expected at most %d answers",
                       r->n_given ? "best_of" : "n", (long long)n_each, (long long)n_prompts, MAX_ANSWERS);
    r->n_choices = n_each * n_prompts;
    for (size_t i = 0; r->suffix && i < json_array_size(r->prompts); i++)
        if (!json_is_string(json_array_get(r->prompts, i)))
            return request_expected(e, request_prompt_path(r, i).s, json_array_get(r->prompts, i),
                                    "a text, as there is a suffix");
    if (r->suffix && r->echo && r->n_logprob >= 0)
        return err_set(e, ERR_USAGE, "suffix: with echo and logprobs; expected two of the three");
    return ERR_OK;
}
