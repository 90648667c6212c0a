/* The server: HTTP, models and what clients may ask for, put together. Its rooms' parts, from the outside to the
 * inside:
 *
 *   listen, http        sockets and HTTP, no meaning
 *   access, keys, quota who may ask
 *   page                the files of the page that browsers get
 *   expert_picture, expert_watch  what the page shows of experts, and who looks
 *   routes, call        which function answers which path; one request on its way
 *   protocol, request   clients' JSON, and answers in their form
 *   job, prompt, stream an answer from texts (texts/texts.h), and its way to the client
 *   models              which models there are and which is loaded
 *   model_change        what a client wants loaded or unloaded */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <jansson.h>

#include "server/listen.h"
#include "server/models.h"

/* A model beside the first: a file and what it is called. */
struct server_model {
    const char *path, *name;
};

/* What is known of plans and of earlier runs. Called by any thread, one at a time. */
struct server_reports {
    /* What a model takes and how fast it can be (docs/planner.md), owned by the caller. */
    err_code (*plan)(void *user, const char *path, json_t **out, struct err *e);
    /* Receipts of earlier runs, an array, oldest first; owned by the caller. */
    err_code (*receipts)(void *user, json_t **out, struct err *e);
    void *user;
};

struct server_options {
    struct listener *listener;    /* taken over */
    struct models_options models; /* but for the log */
    /* The models: a file and what it is called (NULL: as the file), or a folder of files; and [n_more] others, of which
     * those that are there already are passed over. */
    const char *model, *alias, *folder;
    const struct server_model *more;
    size_t n_more;
    bool keeps_model; /* it can't be unloaded: other processes have parts of it */
    struct server_reports reports;
    const char *key, *key_file; /* NULL: everybody may ask */
    int64_t max_per_key;        /* answers at once; 0: any number */
    const char *const *origins; /* [n_origins], whose scripts may use the server: "https://...", or "*" */
    size_t n_origins;
    const moebius_template_var *vars; /* [n_vars], of templates, unless requests say otherwise */
    size_t n_vars;
    int64_t max_body_bytes;
    int64_t max_connections;
    int64_t timeout_s;
    bool has_page; /* at / and below /web/ */
    bool log_json;
    /* Gets the log's lines, from any thread. */
    void (*print)(void *user, const char *line);
    void *user;
};

/* Serves until SIGINT or SIGTERM: then no connection is taken any more, answers have 5 s to end, and those that are
 * left are cancelled; a load that goes on then ends the process. A second signal does so at once. SIGHUP: the keys are
 * read again. The first model is loaded at the start, and a failure is the end; without `model` models are loaded when
 * they are asked for. */
MUST_USE err_code server_run(const struct server_options *options, struct err *e);

#endif
