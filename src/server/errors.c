/* Errors: their HTTP status, and their form in OpenAI's APIs. */
#include <stdio.h>
#include <string.h>

#include "server/writer.h"

static const char overflow_words[] = "prompt is too long: ", thread_words[] = "thread.previous_message_id: ";

err_code server_set_overflow(struct err *e, int64_t n_prompt, int64_t n_ctx)
{
    return err_set(e, ERR_LIMIT, "%s%lld tokens > %lld maximum", overflow_words, (long long)n_prompt, (long long)n_ctx);
}

bool server_is_overflow(const struct err *error)
{
    return error->code == ERR_LIMIT && strstr(error->text, overflow_words);
}

err_code server_set_lost_thread(struct err *e)
{
    return err_set(e, ERR_USAGE, "%sthis server keeps no conversations: send it as a whole", thread_words);
}

bool server_is_lost_thread(const struct err *error)
{
    return error->code == ERR_USAGE && !strncmp(error->text, thread_words, sizeof thread_words - 1);
}

int server_http_status(const struct err *error)
{
    switch (error->code) {
    case ERR_USAGE: return server_is_lost_thread(error) ? 404 : 400;
    case ERR_FORMAT:
    case ERR_UNSUPPORTED: return 400;
    case ERR_LIMIT: return server_is_overflow(error) ? 400 : 503;
    case ERR_NOMEM:
    case ERR_CANCELLED: return 503;
    default: return 500;
    }
}

/* Finds the path of the field that a sentence begins with; "": it begins with none. */
static void find_param(const char *text, char out[FIELD_PATH_BYTES])
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz_0123456789.[]");
    bool is_path = n > 0 && n < FIELD_PATH_BYTES && text[n] == ':';
    snprintf(out, FIELD_PATH_BYTES, "%.*s", is_path ? (int)n : 0, text);
}

json_t *openai_error(int status, const struct err *error)
{
    static const struct {
        int status;
        const char *type, *code;
    } kinds[] = {
        {400, "invalid_request_error", NULL},
        {401, "authentication_error", "invalid_api_key"},
        {403, "permission_error", "forbidden"},
        {404, "invalid_request_error", "not_found"},
        {405, "invalid_request_error", "method_not_allowed"},
        {408, "timeout_error", "request_timeout"},
        {413, "invalid_request_error", "request_too_large"},
        {422, "invalid_request_error", NULL},
        {429, "rate_limit_error", "rate_limit_exceeded"},
        {500, "server_error", NULL},
        {501, "not_supported_error", "not_supported"},
        {503, "overloaded_error", "server_is_overloaded"},
        {529, "overloaded_error", "server_is_overloaded"},
    };
    const char *type = status < 500 ? "invalid_request_error" : "server_error", *code = NULL;
    char param[FIELD_PATH_BYTES];
    find_param(status < 500 ? error->text : "", param); /* other sentences may begin with a file's name */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].status == status) {
            type = kinds[i].type;
            code = kinds[i].code;
        }
    if (server_is_overflow(error))
        code = "context_length_exceeded";
    else if (status == 404 && request_is(param, "model"))
        code = "model_not_found";
    return json_pack("{s:{s:s,s:s,s:s?,s:s?}}", "error", "message", error->text, "type", type, "param",
                     *param ? param : NULL, "code", code);
}
