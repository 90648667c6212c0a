/* The server: connects HTTP, the models, and the protocols that clients speak. The parts of this room, from the outside
 * to the inside:
 *
 *   listen, http                  sockets and HTTP
 *   access, keys, quota           who may use the server, and how much
 *   routes, call                  which function handles a request; one request on its way
 *   protocol, request             parses clients' JSON, and formats answers
 *   job, prompt, stream           makes an answer with texts (texts/texts.h), and sends it
 *   models, model_change          which models there are, and which is loaded
 *   page                          the files of the web page
 *   expert_picture, expert_watch  what the page shows of experts */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <jansson.h>

#include "server/listen.h"
#include "server/models.h"

/* A further model: its file, and the name that clients use. */
struct server_model {
    const char *path, *name;
};

/* Reports for the web page. May be called by any thread, but never two at a time. */
struct server_reports {
    /* The plan of a model: what memory it needs, and how fast it should be (docs/planner.md). Owned by the caller. */
    err_code (*plan)(void *user, const char *path, json_t **out, struct err *e);
    /* Receipts of earlier runs: an array, oldest first. Owned by the caller. */
    err_code (*receipts)(void *user, json_t **out, struct err *e);
    void *user;
};

struct server_options {
    struct listener *listener;       /* taken over */
    struct models_options models;    /* the server sets its log */
    const char *model;               /* a file that is loaded at the start; NULL: none */
    const char *alias;               /* the name of that model; NULL: the file's */
    const char *folder;              /* whose GGUF files are models, too; NULL: none */
    const struct server_model *more; /* [n_more] further models; files that are there already are skipped */
    size_t n_more;
    bool keeps_model; /* the model can't be unloaded, because other processes have parts of it */
    struct server_reports reports;
    const char *key, *key_file; /* both NULL: everybody may use the server */
    int64_t max_per_key;        /* answers that a key may have at once; 0: any number */
    const char *const *origins; /* [n_origins] whose scripts may use the server: "https://...", or "*" */
    size_t n_origins;
    const moebius_template_var *vars; /* [n_vars] variables of templates that requests may override */
    size_t n_vars;
    int64_t reasoning_budget; /* most tokens of reasoning if a request doesn't say; -1: no bound */
    int64_t max_body_bytes;
    int64_t max_connections;
    int64_t timeout_s;
    bool has_page; /* serves the web page at / and below /web/ */
    bool log_json; /* the log's lines are JSON */
    /* Gets each line of the log. May be called by any thread. */
    void (*print)(void *user, const char *line);
    void *user;
};

/* Runs the server until SIGINT or SIGTERM. Then it accepts no more connections, and gives answers 5 s to end before it
 * cancels them. If a model is still being loaded after 2 s, or at a second signal, the process ends at once. SIGHUP
 * makes it read the keys again. If `model` is given, it is loaded at the start, and a failure ends the server; other
 * models are loaded when they are asked for. */
MUST_USE err_code server_run(const struct server_options *options, struct err *e);

#endif
