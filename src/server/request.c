#include "server/request.h"

#include <stdarg.h>

#include "base/mem.h"
#include "base/printable.h"

enum { MAX_NOTES = 32 };

void server_request_init(struct server_request *r)
{
    *r = (struct server_request){.n_choices = 1,
                                 .max_tokens = -1,
                                 .n_logprob = -1,
                                 .reasoning_budget = -1,
                                 .sampling = moebius_default_sampler_options(),
                                 .made = json_array(),
                                 .argument_texts = json_array(),
                                 .template_vars = json_object(),
                                 .notes = json_array()};
}

void server_request_close(struct server_request *r)
{
    json_t *const owned[] = {r->argument_texts, r->body,       r->made,   r->messages, r->prompts,
                             r->tools,          r->tool_kinds, r->schema, r->stops,    r->template_vars,
                             r->notes,          r->deferred,   r->loaded};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        json_decref(owned[i]);
    mem_free(r->biases);
    mem_free(r->breakers);
    *r = (struct server_request){0};
}

int64_t server_request_n_prompts(const struct server_request *r)
{
    return r->prompts ? (int64_t)json_array_size(r->prompts) : 1;
}

int64_t server_request_n_each(const struct server_request *r)
{
    return r->n_choices / server_request_n_prompts(r);
}

void server_request_note(struct server_request *r, const char *fmt, ...)
{
    char line[PRINTABLE_FORMAT_BYTES / 2];
    va_list args;
    size_t n = json_array_size(r->notes);
    if (n >= MAX_NOTES)
        return;
    va_start(args, fmt);
    (void)printable_format(line, sizeof line, fmt, args);
    va_end(args);
    /* a line less in the log where memory is short */
    (void)json_array_append_new(r->notes, json_string(n + 1 < MAX_NOTES ? line : "and more"));
}
