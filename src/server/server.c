#define _GNU_SOURCE /* sigtimedwait */
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "server/access.h"
#include "server/call.h"
#include "server/routes.h"

enum {
    N_WORKER = 16,
    BODIES_FACTOR = 4, /* all bodies together may have so many times the bytes that one may have */
    GRACE_S = 5,       /* for answers to end when the server ends */
    LOAD_GRACE_S = 2,  /* for a model to be loaded when the server ends */
    POLL_NS = 100 * 1000 * 1000,
    TRIM_S = 2, /* the least time between two calls of mem_trim */
};

/* ---- HTTP's callbacks (struct http_app) ------------------------------------------------------------------------ */

/* Refuses a path that does not exist. Clients are often configured with an address that lacks the /v1 at its end, or
 * has one although they add it themselves: then the error says so. */
static void refuse_path(struct call *c)
{
    const char *path = c->x->path, *allow;
    char better[128];
    bool is_twice = !strncmp(path, "/v1/v1/", 7) || !strncmp(path, "/v1/api/", 8);
    snprintf(better, sizeof better, "%s%s", is_twice ? "" : "/v1", is_twice ? path + 3 : path);
    if (routes_find(c->x->method, better, &allow))
        call_refuse(c, 404, "%s: there is nothing here, but at %s: the client's address is to end %s /v1", path, better,
                    is_twice ? "without" : "in");
    else
        call_refuse(c, 404, "%s: there is nothing here: docs/server.md has the list of paths", path);
}

/* Finds the call's route and checks access. False: the call was refused, and the reply is filled. */
static bool find_route(struct call *c)
{
    const char *allow;
    struct http_exchange *x = c->x;
    c->route = routes_find(x->method, x->path, &allow);
    c->protocol = c->route && c->route->protocol ? c->route->protocol : routes_protocol(x->path);
    if (!access_check(c))
        return false;
    if (c->route)
        return true;
    if (allow) {
        x->reply.allow = allow;
        call_refuse(c, 405, "%s %s: expected another method: %s", x->method, x->path, allow);
    } else {
        refuse_path(c);
    }
    return false;
}

static bool on_begin(void *user, struct http_exchange *x)
{
    struct call *c = x->app = call_open(user, x);
    if (!c) {
        x->reply.status = 503;
        return false;
    }
    if (!find_route(c))
        return false;
    if (!c->route->is_quick)
        return true;
    c->route->handle(c);
    return false;
}

static void on_handle(void *user, struct http_exchange *x)
{
    struct call *c = x->app;
    call_hold(c); /* the reply may be sent, and the exchange gone, before the function returns */
    c->route->handle(c);
    call_release(c);
}

static void on_refuse(void *user, struct http_exchange *x, int status, const struct err *why)
{
    struct call *c = x->app;
    if (c)
        call_error_as(c, status, why);
    else
        x->reply.status = status; /* `begin` was not called */
}

static void on_tick(void *user, struct http_exchange *x, int64_t now_ns)
{
    struct call *c = x->app;
    struct job *job = c ? atomic_load(&c->job) : NULL;
    if (job && job_tick(job, now_ns))
        call_begin_stream(c);
    if (c && c->watch)
        expert_watch_tick(c->watch, now_ns, atomic_load(&c->server->ends));
}

static void on_left(void *user, struct http_exchange *x)
{
    struct call *c = x->app;
    if (!c)
        return;
    atomic_store(&c->left, true);
    struct job *job = atomic_load(&c->job);
    if (job)
        job_cancel(job);
    if (c->watch)
        expert_watch_tick(c->watch, clock_ns(), true);
}

static void on_over(void *user, struct http_exchange *x, bool whole)
{
    struct server *s = user;
    struct call *c = x->app;
    if (!c)
        return;
    struct job *job = atomic_load(&c->job);
    if (job && !whole)
        job_cancel(job);
    if (!x->reply.status)
        x->reply.status = STATUS_CLIENT_LEFT; /* before the whole request had arrived */
    metrics_note(&s->metrics, x->reply.status, (!whole && !c->watch) || (job && job_report(job).cancelled));
    if ((c->route && !c->route->is_quick) || x->reply.status >= 400)
        server_log_call(c, whole);
    if (c->route && !c->route->is_quick)
        atomic_store(&s->has_freed, true);
    expert_watch_close(&c->watch);
    quota_leave(&s->quota, &c->share);
    atomic_store(&c->left, true); /* ends a wait for a model */
    call_release(c);
    x->app = NULL;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static void log_sink(void *user, enum log_level level, const char *line)
{
    server_log(user, level, "%s", line);
}

static err_code open_models(struct server *s, struct err *e)
{
    const struct server_options *o = s->options;
    struct models_options options = o->models;
    options.log = &s->log;
    TRY(models_open(&s->models, &options, e));
    if (o->model)
        TRY(models_add(s->models, o->model, o->alias, e));
    if (o->folder)
        TRY(models_add_folder(s->models, o->folder, e));
    for (size_t i = 0; i < o->n_more; i++)
        if (!models_have(s->models, o->more[i].path))
            TRY(models_add(s->models, o->more[i].path, o->more[i].name, e));
    return ERR_OK;
}

static err_code open_http(struct server *s, struct err *e)
{
    const struct server_options *o = s->options;
    const struct http_options options = {
        .listen_fd = o->listener->fd,
        .is_shared = o->listener->is_passed,
        .n_workers = N_WORKER,
        .max_connections = (int)o->max_connections,
        .max_body_bytes = (size_t)o->max_body_bytes,
        .max_bodies_bytes = BODIES_FACTOR * (size_t)o->max_body_bytes,
        .timeout_s = (int)o->timeout_s,
    };
    const struct http_app app = {.begin = on_begin,
                                 .handle = on_handle,
                                 .refuse = on_refuse,
                                 .tick = on_tick,
                                 .left = on_left,
                                 .end = on_over,
                                 .user = s};
    o->listener->fd = -1;
    return http_open(&s->http, &options, &app, e);
}

static err_code open_server(struct server *s, struct err *e)
{
    s->start_ns = clock_ns();
    s->log = (struct log){log_sink, s};
    quota_open(&s->quota, s->options->max_per_key);
    kept_items_open(&s->kept);
    pthread_mutex_init(&s->notes_lock, NULL);
    pthread_mutex_init(&s->reports_lock, NULL);
    s->notes = json_object();
    if (!s->notes)
        return err_nomem(e, 0, "the server");
    TRY(keys_open(&s->keys, s->options->key, s->options->key_file, e));
    TRY(open_models(s, e));
    return open_http(s, e);
}

/* The texts end first, because HTTP must not stop while connections wait for them. The models are closed last, because
 * HTTP's workers use them until the end. */
static void close_server(struct server *s)
{
    atomic_store(&s->ends, true);
    if (s->http)
        http_stop_accepting(s->http);
    if (s->models)
        models_stop(s->models);
    http_close(&s->http);
    models_close(&s->models);
    keys_close(&s->keys);
    quota_close(&s->quota);
    kept_items_close(&s->kept);
    json_decref(s->notes);
    pthread_mutex_destroy(&s->notes_lock);
    pthread_mutex_destroy(&s->reports_lock);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static void make_signal_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
}

/* Waits up to POLL_NS for a signal; 0: none came. */
static int next_signal(const sigset_t *set)
{
    const struct timespec wait = {.tv_nsec = POLL_NS};
    int number = sigtimedwait(set, NULL, &wait);
    return number > 0 ? number : 0;
}

static void reload_keys(struct server *s)
{
    struct err e = {0};
    if (keys_reload(s->keys, &e) == ERR_OK)
        server_log(s, LOG_INFO, "the keys were read again");
    else
        server_log(s, LOG_WARN, "the keys stay as they are: %s", e.text);
}

static void announce(struct server *s)
{
    const struct listener *l = s->options->listener;
    if (models_n(s->models) > 1 || !s->options->model)
        server_log(s, LOG_INFO, "listening at %s, %zu model%s", l->url, models_n(s->models),
                   models_n(s->models) == 1 ? "" : "s");
    else
        server_log(s, LOG_INFO, "listening at %s, model %s", l->url, models_at(s->models, 0)->name);
    if (!l->is_loopback && !keys_are_wanted(s->keys))
        server_log(s, LOG_WARN, "everybody who reaches this address may use the server: --api-key-file asks for keys");
}

/* Finds out whether the first model is loaded, and announces the server when it is. An error: it can't be loaded. */
static err_code look_at_start(struct server *s, bool *is_ready, struct err *e)
{
    if (!s->options->model) {
        *is_ready = true;
    } else {
        struct model_view view = models_look(models_at(s->models, 0));
        bool has_gone = view.state == SERVED_UNLOADED && !view.waits;
        if (has_gone && view.error.code != ERR_OK)
            return err_set(e, view.error.code, "%s", view.error.text);
        *is_ready = has_gone || view.state == SERVED_READY; /* a client may have unloaded it already */
    }
    if (*is_ready)
        announce(s);
    return ERR_OK;
}

/* Returns free memory to the system now and then: each thread's heap keeps what a long body took. */
static void trim(struct server *s, int64_t now, int64_t *trimmed_ns)
{
    if (now - *trimmed_ns < (int64_t)TRIM_S * 1000000000 || !atomic_exchange(&s->has_freed, false))
        return;
    mem_trim();
    *trimmed_ns = now;
}

static err_code serve(struct server *s, const sigset_t *signals, struct err *e)
{
    int64_t trimmed_ns = clock_ns();
    mem_trim();
    if (s->options->model)
        TRY(models_load(s->models, models_at(s->models, 0), e));
    for (bool is_ready = false;;) {
        if (!is_ready)
            TRY(look_at_start(s, &is_ready, e));
        int number = next_signal(signals);
        if (number == SIGHUP)
            reload_keys(s);
        else if (number)
            return ERR_OK;
        models_tick(s->models, clock_ns());
        trim(s, clock_ns(), &trimmed_ns);
    }
}

static _Noreturn void end_process(int exit_code)
{
    output_files_remove();
    _exit(exit_code);
}

/* While answers end: ends the process at a second signal, or when that takes too long. */
static void *end_at_once(void *user)
{
    const sigset_t *signals = user;
    const int64_t until = clock_ns() + (int64_t)(2 * GRACE_S) * 1000000000;
    while (clock_ns() < until) {
        int number = next_signal(signals);
        if (number && number != SIGHUP)
            end_process(128 + number);
    }
    end_process(0);
}

static bool is_loading(struct server *s)
{
    return models_look(models_current(s->models)).state == SERVED_LOADING;
}

/* Whether answers, or a load, are still going on and have time left. */
static bool is_waited_for(struct server *s, int64_t start_ns)
{
    const int64_t ns = clock_ns() - start_ns;
    return (http_n_busy(s->http) && ns < (int64_t)GRACE_S * 1000000000) ||
           (is_loading(s) && ns < (int64_t)LOAD_GRACE_S * 1000000000);
}

static void drain(struct server *s, sigset_t *signals)
{
    const int64_t start_ns = clock_ns();
    pthread_t impatient;
    atomic_store(&s->ends, true);
    http_stop_accepting(s->http);
    models_stop_loading(s->models);
    if (http_n_busy(s->http))
        server_log(s, LOG_INFO, "ending: %zu requests may go on for %d s", http_n_busy(s->http), GRACE_S);
    if (pthread_create(&impatient, NULL, end_at_once, signals) == 0)
        pthread_detach(impatient);
    while (is_waited_for(s, start_ns))
        clock_sleep_ns(POLL_NS / 10);
    if (is_loading(s)) /* nothing can interrupt a load */
        end_process(0);
}

err_code server_run(const struct server_options *options, struct err *e)
{
    static sigset_t signals; /* static, as end_at_once may outlive this function */
    sigset_t before;
    struct server s = {.options = options};
    make_signal_set(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    err_code code = open_server(&s, e);
    if (code == ERR_OK)
        code = serve(&s, &signals, e);
    if (code == ERR_OK)
        drain(&s, &signals);
    close_server(&s);
    return code;
}
