/* serve: a server of the interfaces that clients of language models speak. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/leave_receipt.h"
#include "cli/open_model.h"
#include "cli/rank_run.h"
#include "cli/run_plan.h"
#include "cli/say.h"
#include "cli/serve_reports.h"
#include "cli/template_options.h"
#include "hub/hub.h"
#include "server/http.h"
#include "server/server.h"

enum {
    DEFAULT_PORT = 8080,
    DEFAULT_TEXTS = 8,
    DEFAULT_QUEUE = 64,
    MAX_TEXTS = 1024,
    DEFAULT_BODY_BYTES = 32 << 20,
    DEFAULT_CONNECTIONS = 256,
    DEFAULT_TIMEOUT_S = 60,
};

static const int64_t default_cache_bytes = (int64_t)8 << 30;

struct serve_command {
    struct model_options model;
    const char *host, *folder, *alias, *key, *key_file, *template, *cache_dir;
    int64_t port, n_texts, n_queue, n_per_key, idle_s, cache_bytes, reasoning_budget, max_body_bytes, max_connections,
        timeout_s;
    struct option_list origins, var_texts;
    struct cli_vars vars;
    bool log_json, no_page, listed;
    struct listener listener;
    struct cached_models cached; /* the models that --models-listed finds */
    struct server_model *more;   /* [cached.n], whole models first; owned */
    size_t n_more;
};

static void print_line(void *user, const char *line)
{
    say_line(line);
}

static err_code open_engine(void *user, const char *path, const struct load_watch *watch, moebius_engine **out,
                            int64_t *n_ctx, struct err *e)
{
    const struct serve_command *c = user;
    struct model_options o = c->model;
    struct opened opened = {0};
    o.path = path;
    o.loading = watch->tell;
    o.loading_user = watch->user;
    err_code code = cli_open_engine(&o, &opened, e);
    *out = opened.engine;
    const struct run_texts texts = {.n_texts_most = c->n_texts, .n_ctx = o.n_ctx};
    if (code == ERR_OK)
        *n_ctx = run_plan_begin(&o, opened.engine, &texts);
    return code;
}

static err_code open_template(void *user, const char *path, const moebius_vocab *vocab, moebius_template **out,
                              struct err *e)
{
    const struct serve_command *c = user;
    return cli_open_template(c->template, path, vocab, out, e);
}

/* Called when a model is unloaded. */
static void note_end(void *user, const char *path, const moebius_engine *engine, const struct texts_stats *stats)
{
    const struct serve_command *c = user;
    struct model_options o = c->model;
    o.path = path;
    cli_leave_texts_receipt(&o, engine, "serve", stats);
}

/* Checks an origin in the form that browsers send: a scheme, a host, and a port if it is not the scheme's default. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    return !strcmp(text, "*") || !strcmp(text, "null") ||
           (host && host > text && host[3] && !strpbrk(host + 3, "/?# "));
}

static err_code check(struct serve_command *c, struct err *e)
{
    for (int i = 0; i < c->origins.n; i++)
        if (!is_origin(c->origins.items[i]))
            return err_set(e, ERR_USAGE,
                           "--cors %s: expected an origin such as https://example.org, without a path, or *",
                           c->origins.items[i]);
    if (c->model.path && c->folder)
        return err_set(e, ERR_USAGE, "-m FILE and --models DIR: expected one of the two");
    if (!c->model.path && !c->folder && !c->listed)
        return err_set(e, ERR_USAGE, "expected -m FILE, --models DIR or --models-listed");
    if ((c->alias && !c->model.path) || (c->model.store && (c->folder || c->listed)))
        return err_set(e, ERR_USAGE, "--%s is about one model: expected -m FILE with it", c->alias ? "alias" : "store");
    if (c->alias && !*c->alias)
        return err_set(e, ERR_USAGE, "--alias: a model's name is empty");
    TRY(cli_check_draft(&c->model, e));
    TRY(http_check(e));
    return cli_parse_vars(&c->var_texts, &c->vars, e);
}

/* Opens the socket before the sandbox begins, which allows no new ones. */
static err_code begin(const struct command *command, const struct option *options, int n_option, int argc, char **argv,
                      struct serve_command *c, struct err *e)
{
    TRY(options_parse(command, options, n_option, &argc, argv, e));
    TRY(check(c, e));
    TRY(cli_find_models(command, options, n_option, argc, argv, e)); /* before the socket */
    TRY(rank_run_begin(e));
    if (rank_run_is_first())
        TRY(listener_open(&c->listener, c->host, c->port, e));
    return cli_confine(command, options, n_option, argc, argv, NULL, e);
}

/* The whole models of the Hub's cache, in the order of `moebius list`. */
static err_code list_models(struct serve_command *c, struct err *e)
{
    struct hub_places places;
    if (!c->listed)
        return ERR_OK;
    TRY(hub_places_find(&places, e));
    TRY(hub_cache_list(&places, &c->cached, e));
    c->more = mem_calloc(c->cached.n ? c->cached.n : 1, sizeof *c->more);
    if (!c->more)
        return err_nomem(e, c->cached.n * sizeof *c->more, "a list of models");
    for (size_t i = 0; i < c->cached.n; i++) {
        const struct cached_model *m = &c->cached.models[i];
        if (m->n_whole == m->n_parts)
            c->more[c->n_more++] = (struct server_model){m->path, m->name};
    }
    if (c->n_more == 0 && !c->model.path && !c->folder)
        return err_set(e, ERR_USAGE, "--models-listed: there is no whole model here yet: moebius pull fetches one");
    return ERR_OK;
}

static err_code serve(struct serve_command *c, struct err *e)
{
    struct report_settings reports = {&c->model, c->n_texts};
    struct server_options o = {.listener = &c->listener,
                               .model = c->model.path,
                               .alias = c->alias,
                               .folder = c->folder,
                               .more = c->more,
                               .n_more = c->n_more,
                               .keeps_model = rank_run_ranks() != NULL,
                               .reports = {serve_report_plan, serve_report_receipts, &reports},
                               .key = c->key,
                               .key_file = c->key_file,
                               .max_per_key = c->n_per_key,
                               .origins = c->origins.items,
                               .n_origins = (size_t)c->origins.n,
                               .vars = c->vars.vars,
                               .n_vars = c->vars.n,
                               .reasoning_budget = c->reasoning_budget,
                               .max_body_bytes = c->max_body_bytes,
                               .max_connections = c->max_connections,
                               .timeout_s = c->timeout_s,
                               .has_page = !c->no_page,
                               .log_json = c->log_json,
                               .print = print_line};
    o.models = (struct models_options){.opener = {.engine = open_engine,
                                                  .tmpl = open_template,
                                                  .needs_tmpl = c->template != NULL,
                                                  .ends = note_end,
                                                  .user = c},
                                       .texts = {.n_texts = (size_t)c->n_texts,
                                                 .n_draft = c->model.n_draft,
                                                 .n_queue = (size_t)c->n_queue,
                                                 .n_batch = c->model.n_batch,
                                                 .cache_dir = c->cache_dir,
                                                 .cache_bytes = c->cache_bytes},
                                       .idle_ns = c->idle_s * 1000000000};
    TRY(cli_session_options(&c->model, &o.models.texts.session, e));
    say_to_log(c->log_json);
    return server_run(&o, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct serve_command j = {.host = "127.0.0.1",
                              .port = DEFAULT_PORT,
                              .n_texts = DEFAULT_TEXTS,
                              .n_queue = DEFAULT_QUEUE,
                              .cache_bytes = default_cache_bytes,
                              .reasoning_budget = -1,
                              .max_body_bytes = DEFAULT_BODY_BYTES,
                              .max_connections = DEFAULT_CONNECTIONS,
                              .timeout_s = DEFAULT_TIMEOUT_S,
                              .listener = {.fd = -1}};
    const struct option options[] = {
        MODEL_OPTIONS(j.model),
        {"--models", OPT_MODELS, &j.folder, "DIR", "serve the models in DIR, one at a time, not -m FILE", 0, 0, 0},
        {"--models-listed", OPT_LISTED, &j.listed, "", "also serve the complete models of `moebius list`", 0, 0, 0},
        {"--idle", OPT_INT, &j.idle_s, "S", "unload a model after S seconds without use (never)", 1, 1e9, 0,
         GROUP_SERVER},
        {"--host", OPT_STRING, &j.host, "NAME", "address to listen at (127.0.0.1)", 0, 0, 0},
        {"--port", OPT_INT, &j.port, "N", "port (8080); 0: any free port", 0, 65535, 0},
        {"--api-key", OPT_STRING, &j.key, "KEY", "require this key (visible to all users of the machine)", 0, 0, 0},
        {"--api-key-file", OPT_INPUT_AGAIN, &j.key_file, "FILE",
         "require one of the keys in FILE, one per line; reread on SIGHUP", 0, 0, 0, GROUP_SERVER},
        {"--cors", OPT_LIST, &j.origins, "ORIGIN", "allow web pages of ORIGIN (*: all); repeatable", 0, 0, 0,
         GROUP_SERVER},
        {"--alias", OPT_STRING, &j.alias, "NAME", "the model's name (default: its file's name)", 0, 0, 0, GROUP_SERVER},
        {"--texts", OPT_INT, &j.n_texts, "N", "slots: texts computed at once (8)", 1, MAX_TEXTS, 0},
        DRAFT_OPTIONS(j.model),
        {"--queue", OPT_INT, &j.n_queue, "N", "texts that may wait for a slot (64); more get 503", 0, 1e6, 0,
         GROUP_SERVER},
        {"--per-key", OPT_INT, &j.n_per_key, "N", "answers of one key at once (unlimited); more get 429", 1, 1e6, 0,
         GROUP_SERVER},
        {"--state", OPT_SIZE, &j.model.state_bytes, "SIZE",
         "memory for the KV caches and state of texts (half of the machine's)", 0, 0, 0, GROUP_MEMORY},
        {"--ctx,-c", OPT_INT, &j.model.n_ctx, "N",
         "context of each text (default: the plan chooses, at most the model's)", 1, 1 << 30, 0},
        {"--cache-dir", OPT_OUTPUT_FOLDERS, &j.cache_dir, "DIR", "also cache prompt beginnings in DIR", 0, 0, 0,
         GROUP_MEMORY},
        {"--cache-size", OPT_SIZE, &j.cache_bytes, "SIZE", "size limit of --cache-dir (8G)", 0, 0, 0, GROUP_MEMORY},
        {"--template", OPT_INPUT, &j.template, "FILE", "use this chat template instead of the model's", 0, 0, 0,
         GROUP_FORM},
        {"--var", OPT_LIST, &j.var_texts, "NAME=JSON", "set a template variable; requests may override it", 0, 0, 0,
         GROUP_FORM},
        {"--reasoning-budget", OPT_INT, &j.reasoning_budget, "N",
         "most tokens of reasoning if a request doesn't say (unlimited)", 1, 1 << 30, 0, GROUP_FORM},
        {"--max-body", OPT_SIZE, &j.max_body_bytes, "SIZE", "largest request body (32M)", 0, 0, 0, GROUP_SERVER},
        {"--connections", OPT_INT, &j.max_connections, "N", "open connections (256)", 1, 65536, 0, GROUP_SERVER},
        {"--timeout", OPT_INT, &j.timeout_s, "S", "seconds for a client to send a request or to read on (60)", 1, 86400,
         0, GROUP_SERVER},
        {"--no-page", OPT_FLAG, &j.no_page, "", "serve no web page at /", 0, 0, 0, GROUP_SERVER},
        {"--log-json", OPT_FLAG, &j.log_json, "", "write the log as JSON", 0, 0, 0, GROUP_SERVER},
        CAR_OPTIONS(j.model),
        RECEIPT_OPTION(j.model),
    };
    struct err e = {0};
    err_code code = begin(c, options, N_OPTIONS(options), argc, argv, &j, &e);
    if (code == ERR_OK)
        code = list_models(&j, &e);
    if (code == ERR_OK)
        code = serve(&j, &e);
    listener_close(&j.listener);
    cached_models_close(&j.cached);
    mem_free(j.more);
    return cli_exit(c, code, &e);
}

const struct command cmd_serve = {
    .name = "serve",
    .usage = "-m FILE | --models DIR | --models-listed [OPTIONS]",
    .summary = "serve clients of the OpenAI, Anthropic and Ollama APIs",
    .details =
        "Computes up to --texts texts together, and prompts that begin alike only once. Stops on SIGTERM or Ctrl-C; "
        "answers may continue for 5 s. docs/server.md describes the endpoints.",
    .runs_model = true,
    .serves = true,
    .run = run,
};
