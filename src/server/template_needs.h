/* What a model's chat template can't take, found out by probes when the model is loaded, and conversations made fit for
 * it: what the client sent is not at fault. */
#ifndef SERVER_TEMPLATE_NEEDS_H
#define SERVER_TEMPLATE_NEEDS_H

#include "server/request.h"

struct template_needs {
    bool text_arguments; /* calls' arguments are a text of JSON (DeepSeek), not an object */
    bool short_ids;      /* calls' ids have nine letters and digits (Mistral) */
    bool no_system;      /* there is no system message: the user's first message begins with it */
    bool one_user;       /* the user's messages don't follow each other: they become one */
};

/* Takes some milliseconds. Of a template that fails on everything nothing is said. */
struct template_needs template_needs_find(const moebius_template *tmpl);

/* The request's messages, made fit; owned by the caller. NULL: there is no memory. */
json_t *template_needs_apply(const struct template_needs *needs, const struct server_request *r);

#endif
