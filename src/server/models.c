#define _POSIX_C_SOURCE 200809L /* scandir */
#include "server/models.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/split_set.h"
#include "server/hide_folders.h"

enum { MAX_MODELS = 256 };

struct models {
    struct models_options options;
    struct served_model *list[MAX_MODELS]; /* [n], owned */
    size_t n;
    atomic_size_t n_watchers; /* clients that watch experts */

    pthread_mutex_t lock;         /* protects all that follows, and the models' fields that change */
    pthread_cond_t changed;       /* signalled when a model's n_users changes */
    struct served_model *current; /* the model that has a thread; NULL: none */
    struct served_model *told;    /* the model that models_load has asked for, until it is ready; NULL: none */
    struct model_wait *waits;     /* [n_waits] requests that wait for a model, oldest first */
    size_t n_waits;
    bool stops;
};

/* ---- waits; all with the lock held ----------------------------------------------------------------------------- */

/* The model to be loaded next. Until it is loaded, the current one takes no new users. NULL: there is none. */
static struct served_model *wanted(const struct models *all)
{
    return all->told ? all->told : all->waits ? all->waits->model : NULL;
}

/* Ends a wait with an error; e NULL: with the model. */
static void end_wait(struct models *all, struct model_wait **at, const struct err *e)
{
    struct model_wait *w = *at;
    *at = w->next;
    all->n_waits--;
    if (e)
        w->error = *e;
    else
        w->model->n_users++;
    w->over(w->user);
}

/* Ends all waits for a model; m NULL: for all models. */
static void end_waits(struct models *all, const struct served_model *m, const struct err *e)
{
    for (struct model_wait **at = &all->waits; *at;)
        if (!m || (*at)->model == m)
            end_wait(all, at, e);
        else
            at = &(*at)->next;
}

static void end_waits_of_left(struct models *all)
{
    struct err e = {0};
    err_set(&e, ERR_CANCELLED, "the client has left");
    for (struct model_wait **at = &all->waits; *at;)
        if (atomic_load((*at)->left))
            end_wait(all, at, &e);
        else
            at = &(*at)->next;
}

/* Notes that a model can't be loaded, and ends the waits for it. */
static void give_up(struct models *all, struct served_model *m, const struct err *e)
{
    log_line(all->options.log, LOG_WARN, "model %s: %s", m->name, e->text);
    m->error = *e;
    hide_folders(m->path, &m->error);
    if (all->told == m)
        all->told = NULL;
    end_waits(all, m, &m->error);
}

/* ---- the driving thread ---------------------------------------------------------------------------------------- */

static struct served_facts facts_of(const struct served_model *m)
{
    struct served_facts f = {.n_ctx = texts_n_ctx(m->texts),
                             .n_ctx_train = moebius_n_ctx_train(m->engine),
                             .n_vocab = moebius_n_vocab(m->engine),
                             .n_embd = moebius_n_embd(m->engine),
                             .n_layer = moebius_n_layer(m->engine)};
    snprintf(f.arch, sizeof f.arch, "%s", moebius_arch(m->engine));
    return f;
}

/* Opens the store of answers that called tools. Its file is in the folder of the disk cache, if there is one. */
static err_code open_replay(struct served_model *m, struct err *e)
{
    const char *dir = m->models->options.texts.cache_dir;
    struct bytes path = {0};
    err_code code = dir ? bytes_print(&path, e, "%s/answers.jsonl", dir) : ERR_OK;
    if (code == ERR_OK && dir && mkdir(dir, 0700) != 0 && errno != EEXIST)
        code = err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    if (code == ERR_OK)
        code = replay_open(&m->replay, path.s, moebius_fingerprint(m->engine), e);
    bytes_close(&path);
    return code;
}

static void on_step(void *user, bool is_idle)
{
    struct served_model *m = user;
    const struct texts_stats stats = texts_stats(m->texts);
    expert_picture_step(m->picture, m->engine, &stats, atomic_load(&m->models->n_watchers) > 0, is_idle);
}

static void note_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    struct served_model *m = user;
    atomic_store(&m->load_total, total_bytes);
    atomic_store(&m->load_done, done_bytes);
}

/* A model without a template can be loaded all the same: it can still continue texts. */
static err_code open_template(struct served_model *m, struct err *e)
{
    const struct models_options *o = &m->models->options;
    m->template_error = (struct err){0};
    err_code code = o->opener.tmpl(o->opener.user, m->path, m->vocab, &m->tmpl, &m->template_error);
    if (code != ERR_OK && o->opener.needs_tmpl)
        return err_set(e, code, "%s", m->template_error.text);
    if (code != ERR_OK)
        log_line(o->log, LOG_INFO, "model %s: %s", m->name, m->template_error.text);
    hide_folders(m->path, &m->template_error);
    m->needs = m->tmpl ? template_needs_find(m->tmpl) : (struct template_needs){0};
    return ERR_OK;
}

static err_code load(struct served_model *m, struct err *e)
{
    const struct models_options *o = &m->models->options;
    struct texts_options texts = o->texts;
    texts.stepped = on_step;
    texts.stepped_user = m;
    texts.log = o->log;
    const struct load_watch watch = {note_progress, m};
    TRY(o->opener.engine(o->opener.user, m->path, &watch, &m->engine, &texts.n_ctx, e));
    m->vocab = moebius_engine_vocab(m->engine);
    TRY(open_template(m, e));
    TRY(open_replay(m, e));
    TRY(grammar_cache_open(&m->grammars, m->vocab, e));
    TRY(expert_picture_begin(m->picture, m->engine, m->name, e));
    return texts_open(&m->texts, m->engine, &texts, e);
}

static void unload(struct served_model *m)
{
    if (m->texts)
        texts_close(&m->texts);
    replay_close(&m->replay);
    grammar_cache_close(&m->grammars);
    expert_picture_end(m->picture);
    moebius_template_close(&m->tmpl);
    moebius_engine_close(&m->engine);
    m->vocab = NULL;
    mem_trim();
}

static void set_state(struct served_model *m, enum served_state state)
{
    struct models *all = m->models;
    pthread_mutex_lock(&all->lock);
    m->state = state;
    pthread_mutex_unlock(&all->lock);
}

static struct place_figures places_of(const struct served_model *m)
{
    struct place_figures f = {.n = moebius_n_place(m->engine)};
    f.n = f.n > 1 && f.n <= MODELS_MAX_PLACE ? f.n : 0;
    for (int i = 0; i < f.n; i++)
        if (moebius_place_did(m->engine, i, -1, &f.did[i], NULL) != MOEBIUS_OK)
            f.did[i] = (moebius_place_stats){0};
    return f;
}

static struct device_ledger ledger_of(const struct served_model *m)
{
    struct device_ledger l = {0};
    moebius_device d;
    for (; moebius_engine_device(m->engine, l.n, &d); l.n++) {
        if (l.n == MODELS_MAX_DEVICE)
            return (struct device_ledger){0};
        l.held[l.n] = (struct held_bytes){.weights = d.weight_bytes,
                                          .experts = d.expert_bytes,
                                          .texts = d.context_bytes,
                                          .activations = d.work_bytes};
        snprintf(l.held[l.n].device, sizeof l.held[l.n].device, "%s", d.name);
    }
    return l;
}

static void become_ready(struct served_model *m)
{
    struct models *all = m->models;
    struct served_facts facts = facts_of(m);
    struct place_figures places = places_of(m);
    struct device_ledger ledger = ledger_of(m);
    pthread_mutex_lock(&all->lock);
    m->facts = facts;
    m->counters = moebius_engine_counters(m->engine);
    m->places = places;
    m->ledger = ledger;
    m->error = (struct err){0};
    m->used_ns = clock_ns();
    if (all->told == m)
        all->told = NULL;
    bool stops = all->stops;
    m->state = stops ? SERVED_ENDING : SERVED_READY;
    if (!m->leaves)
        end_waits(all, m,
                  NULL); /* even those that came later than others', so that it is not unloaded before it served them */
    pthread_mutex_unlock(&all->lock);
    if (stops)
        texts_stop(m->texts);
}

/* Waits until nobody has the model any more: users submit texts, and read the vocabulary. */
static void wait_for_users(struct served_model *m)
{
    struct models *all = m->models;
    pthread_mutex_lock(&all->lock);
    m->state = SERVED_ENDING;
    while (m->n_users)
        pthread_cond_wait(&all->changed, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void note_failure(struct served_model *m, const struct err *e)
{
    pthread_mutex_lock(&m->models->lock);
    give_up(m->models, m, e);
    pthread_mutex_unlock(&m->models->lock);
}

static void tell_end(const struct served_model *m)
{
    const struct model_opener *o = &m->models->options.opener;
    const struct texts_stats stats = texts_stats(m->texts);
    o->ends(o->user, m->path, m->engine, &stats);
}

static void *drive(void *user)
{
    struct served_model *m = user;
    struct err e = {0};
    err_code code = load(m, &e);
    if (code == ERR_OK) {
        become_ready(m);
        texts_run(m->texts);
    }
    wait_for_users(m);
    if (code == ERR_OK)
        tell_end(m);
    unload(m);
    if (code != ERR_OK)
        note_failure(m, &e);
    set_state(m, SERVED_UNLOADED);
    return NULL;
}

/* ---- which model is loaded; all with the lock held ------------------------------------------------------------- */

static bool is_idle(struct served_model *m)
{
    if (m->state != SERVED_READY || m->n_users)
        return false;
    struct texts_stats s = texts_stats(m->texts);
    return s.n_running + s.n_waiting == 0;
}

/* Joins the thread of a model that is unloaded, which has nothing left to do. */
static void reap(struct models *all)
{
    struct served_model *m = all->current;
    if (!m || m->state != SERVED_UNLOADED)
        return;
    pthread_join(m->thread, NULL);
    m->has_thread = false;
    all->current = NULL;
}

static void end_current(struct models *all)
{
    all->current->state = SERVED_ENDING;
    texts_stop(all->current->texts);
}

static err_code start(struct models *all, struct served_model *m, struct err *e)
{
    assert(!all->current && m->state == SERVED_UNLOADED);
    m->state = SERVED_LOADING;
    m->leaves = false;
    atomic_store(&m->load_done, 0);
    atomic_store(&m->load_total, 0);
    if (pthread_create(&m->thread, NULL, drive, m) != 0) {
        m->state = SERVED_UNLOADED;
        return err_set(e, ERR_FAIL, "the thread of model %s can't be started", m->name);
    }
    m->has_thread = true;
    all->current = m;
    return ERR_OK;
}

static bool is_there(const struct served_model *m)
{
    return m->state == SERVED_READY && !m->leaves;
}

/* Takes the next step to load the wanted model. A failure also ends the waits for it. */
static err_code approach(struct models *all, struct err *e)
{
    reap(all);
    struct served_model *m = wanted(all);
    if (!m || all->stops)
        return ERR_OK;
    if (is_there(m))
        end_waits(all, m, NULL);
    else if (all->current && all->current != m && is_idle(all->current))
        end_current(all);
    err_code code = all->current ? ERR_OK : start(all, m, e);
    if (code != ERR_OK)
        give_up(all, m, e);
    return code;
}

/* ---- taking models --------------------------------------------------------------------------------------------- */

size_t models_n(const struct models *all)
{
    return all->n;
}

struct served_model *models_at(struct models *all, size_t i)
{
    assert(i < all->n);
    return all->list[i];
}

struct served_model *models_find(struct models *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->list[i]->name, name))
            return all->list[i];
    return NULL;
}

size_t models_n_waiting(struct models *all)
{
    pthread_mutex_lock(&all->lock);
    size_t n = all->n_waits;
    pthread_mutex_unlock(&all->lock);
    return n;
}

struct served_model *models_current(struct models *all)
{
    pthread_mutex_lock(&all->lock);
    struct served_model *m = all->current ? all->current : all->list[0];
    pthread_mutex_unlock(&all->lock);
    return m;
}

/* Enters a wait into the list; ERR_LIMIT: too many wait. */
static err_code begin_wait(struct models *all, struct model_wait *wait)
{
    const size_t n_max = all->options.texts.n_texts + all->options.texts.n_queue;
    struct model_wait **last = &all->waits;
    if (all->stops)
        return err_set(&wait->error, ERR_CANCELLED, "the server is ending");
    if (all->n_waits >= n_max)
        return err_set(&wait->error, ERR_LIMIT, "%zu requests wait for models already: try again later", all->n_waits);
    while (*last)
        last = &(*last)->next;
    wait->next = NULL;
    *last = wait;
    all->n_waits++;
    return ERR_OK;
}

bool models_take(struct models *all, struct model_wait *wait)
{
    struct served_model *m = wait->model;
    struct err e = {0};
    pthread_mutex_lock(&all->lock);
    const bool is_ready = is_there(m) && (!wanted(all) || wanted(all) == m);
    bool is_over = is_ready || begin_wait(all, wait) != ERR_OK;
    m->n_users += is_ready;
    if (!is_over)
        (void)!approach(all, &e); /* a failure ends the wait with that error */
    pthread_mutex_unlock(&all->lock);
    return is_over;
}

void models_give_back(struct served_model *m)
{
    struct models *all = m->models;
    pthread_mutex_lock(&all->lock);
    m->n_users--;
    m->used_ns = clock_ns();
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
}

/* ---- loading and unloading on request -------------------------------------------------------------------------- */

/* Another model that is being loaded or will be; NULL: there is none. */
static const struct served_model *rival(const struct models *all, const struct served_model *m)
{
    const struct served_model *current = all->current && all->current->state == SERVED_LOADING ? all->current : NULL;
    return wanted(all) && wanted(all) != m ? wanted(all) : current != m ? current : NULL;
}

static err_code ask_for(struct models *all, struct served_model *m, struct err *e)
{
    const struct served_model *other = rival(all, m);
    if (all->stops)
        return err_set(e, ERR_CANCELLED, "the server is ending");
    if (other)
        return err_set(e, ERR_LIMIT, "model %s is being loaded: ask for %s when it is there", other->name, m->name);
    m->leaves = false;
    if (!is_there(m))
        all->told = m;
    return approach(all, e);
}

err_code models_load(struct models *all, struct served_model *m, struct err *e)
{
    pthread_mutex_lock(&all->lock);
    err_code code = ask_for(all, m, e);
    pthread_mutex_unlock(&all->lock);
    return code;
}

/* Takes back that a model was to be loaded, unless requests wait for it. */
static err_code forget(struct models *all, const struct served_model *m, struct err *e)
{
    const bool was_told = all->told == m;
    size_t n = 0;
    for (const struct model_wait *w = all->waits; w; w = w->next)
        n += w->model == m;
    if (was_told)
        all->told = NULL;
    if (n > 0)
        return err_set(e, ERR_LIMIT, "%zu request%s for model %s", n, n == 1 ? " waits" : "s wait", m->name);
    return was_told ? ERR_OK : err_set(e, ERR_USAGE, "model %s is not loaded", m->name);
}

static err_code let_go(struct models *all, struct served_model *m, bool when_done, struct err *e)
{
    const bool is_loading = m->state == SERVED_LOADING;
    if (m->state == SERVED_ENDING)
        return ERR_OK;
    if (m->state == SERVED_UNLOADED)
        return forget(all, m, e);
    if (is_idle(m)) {
        end_current(all);
        return ERR_OK;
    }
    /* a model that is busy without texts has a user who is about to submit one, or who has just got the answer */
    const struct texts_stats s = is_loading ? (struct texts_stats){0} : texts_stats(m->texts);
    const size_t n = s.n_running + s.n_waiting;
    m->leaves = m->leaves || when_done || (!is_loading && n == 0);
    if (m->leaves)
        return ERR_OK;
    if (is_loading)
        return err_set(e, ERR_LIMIT, "model %s is being loaded: \"when_done\": true unloads it then", m->name);
    return err_set(e, ERR_LIMIT, "model %s has %zu answer%s under way: \"when_done\": true unloads it after that",
                   m->name, n, n == 1 ? "" : "s");
}

err_code models_unload(struct models *all, struct served_model *m, bool when_done, struct err *e)
{
    pthread_mutex_lock(&all->lock);
    err_code code = let_go(all, m, when_done, e);
    pthread_mutex_unlock(&all->lock);
    return code;
}

/* ---- looking --------------------------------------------------------------------------------------------------- */

static double loaded_share(struct served_model *m)
{
    uint64_t total = atomic_load(&m->load_total);
    return total ? (double)atomic_load(&m->load_done) / (double)total : 0;
}

struct model_view models_look(struct served_model *m)
{
    struct models *all = m->models;
    pthread_mutex_lock(&all->lock);
    struct model_view view = {.state = m->state,
                              .leaves = m->leaves,
                              .waits = wanted(all) == m && m->state == SERVED_UNLOADED,
                              .loaded_share = m->state == SERVED_LOADING ? loaded_share(m) : 0,
                              .facts = m->facts,
                              .error = m->error};
    if (m->state == SERVED_READY) {
        view.counters = m->counters;
        view.places = m->places;
        view.ledger = m->ledger;
        view.stats = texts_stats(m->texts);
    }
    pthread_mutex_unlock(&all->lock);
    return view;
}

bool models_peek(struct served_model *m, void (*look)(void *user, const struct served_model *m), void *user)
{
    pthread_mutex_lock(&m->models->lock);
    bool is_ready = m->state == SERVED_READY;
    if (is_ready)
        look(user, m);
    pthread_mutex_unlock(&m->models->lock);
    return is_ready;
}

const char *models_state_name(enum served_state state)
{
    switch (state) {
    case SERVED_LOADING: return "loading";
    case SERVED_READY: return "ready";
    case SERVED_ENDING: return "unloading";
    default: return "unloaded";
    }
}

void models_watch(struct models *all, bool begins)
{
    pthread_mutex_lock(&all->lock);
    atomic_fetch_add(&all->n_watchers, begins ? 1 : (size_t)-1);
    if (begins && all->current && all->current->state == SERVED_READY)
        texts_poke(all->current->texts);
    pthread_mutex_unlock(&all->lock);
}

void models_note_end(struct served_model *m)
{
    struct models *all = m->models;
    moebius_counters now = moebius_engine_counters(m->engine);
    struct place_figures places = places_of(m);
    struct device_ledger ledger = ledger_of(m);
    pthread_mutex_lock(&all->lock);
    m->counters = now;
    m->places = places;
    m->ledger = ledger;
    m->used_ns = clock_ns();
    pthread_mutex_unlock(&all->lock);
}

void models_tick(struct models *all, int64_t now_ns)
{
    struct err e = {0};
    pthread_mutex_lock(&all->lock);
    end_waits_of_left(all);
    struct served_model *m = all->current;
    bool is_forgotten = all->options.idle_ns && m && now_ns - m->used_ns > all->options.idle_ns;
    if ((is_forgotten || (m && m->leaves)) && is_idle(m))
        end_current(all);
    (void)!approach(all, &e); /* failures are logged, and reported to those who wait */
    pthread_mutex_unlock(&all->lock);
}

/* ---- the registry ---------------------------------------------------------------------------------------------- */

err_code models_open(struct models **out, const struct models_options *options, struct err *e)
{
    struct models *all = *out = mem_calloc(1, sizeof *all);
    if (!all)
        return err_nomem(e, sizeof *all, "models");
    all->options = *options;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    return ERR_OK;
}

/* Makes a name that clients can write in JSON from any file name. Owned by the caller. */
static char *printable_name(const char *name)
{
    char text[PRINTABLE_FORMAT_BYTES];
    (void)printable_line(name, strlen(name), text, sizeof text);
    return mem_strdup(text);
}

/* The NAME in "DIR/NAME.gguf" or "DIR/NAME-00001-of-00003.gguf". Owned by the caller. */
static char *name_of(const char *path)
{
    static const char suffix[] = ".gguf";
    struct split_set s;
    const char *slash = strrchr(path, '/');
    char *name = printable_name(slash ? slash + 1 : path);
    size_t n = name ? strlen(name) : 0;
    if (name && split_set_parse(&s, name, n) && s.n_name > 0)
        name[s.n_name] = '\0';
    else if (n > sizeof suffix - 1 && !strcmp(name + n - (sizeof suffix - 1), suffix))
        name[n - (sizeof suffix - 1)] = '\0';
    return name;
}

err_code models_add(struct models *all, const char *path, const char *name, struct err *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (all->n == MAX_MODELS)
        return err_set(e, ERR_LIMIT, "%s: expected at most %d models", path, MAX_MODELS);
    struct served_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "a model");
    all->list[all->n++] = m;
    *m = (struct served_model){.models = all, .size_bytes = st.st_size, .created = st.st_mtime};
    TRY(expert_picture_open(&m->picture, e));
    m->path = mem_strdup(path);
    m->name = name ? printable_name(name) : name_of(path);
    return m->path && m->name ? ERR_OK : err_nomem(e, strlen(path), "a model's name");
}

bool models_have(const struct models *all, const char *path)
{
    struct stat st, other;
    for (size_t i = 0; stat(path, &st) == 0 && i < all->n; i++)
        if (stat(all->list[i]->path, &other) == 0 && other.st_dev == st.st_dev && other.st_ino == st.st_ino)
            return true;
    return false;
}

/* Whether a file is a model, or the first part of one. */
static bool is_model_file(const char *name)
{
    struct split_set s;
    size_t n = strlen(name);
    if (n < 6 || strcmp(name + n - 5, ".gguf") != 0 || name[0] == '.')
        return false;
    return !split_set_parse(&s, name, n) || s.part == 1;
}

static err_code add_entry(struct models *all, const char *folder, const char *name, struct err *e)
{
    struct bytes path = {0};
    err_code code = bytes_print(&path, e, "%s/%s", folder, name);
    if (code == ERR_OK)
        code = models_add(all, path.s, NULL, e);
    bytes_close(&path);
    return code;
}

err_code models_add_folder(struct models *all, const char *path, struct err *e)
{
    struct dirent **entries = NULL;
    err_code code = ERR_OK;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (code == ERR_OK && is_model_file(entries[i]->d_name))
            code = add_entry(all, path, entries[i]->d_name, e);
        free(entries[i]);
    }
    free(entries);
    return code == ERR_OK && all->n == 0 ? err_set(e, ERR_USAGE, "%s: there is no GGUF file", path) : code;
}

void models_stop_loading(struct models *all)
{
    struct err e = {0};
    err_set(&e, ERR_CANCELLED, "the server is ending");
    pthread_mutex_lock(&all->lock);
    all->stops = true;
    end_waits(all, NULL, &e);
    pthread_mutex_unlock(&all->lock);
}

void models_stop(struct models *all)
{
    models_stop_loading(all);
    pthread_mutex_lock(&all->lock);
    if (all->current && all->current->state == SERVED_READY)
        end_current(all);
    struct served_model *m = all->current;
    pthread_mutex_unlock(&all->lock);
    if (m && m->has_thread)
        pthread_join(m->thread, NULL);
    if (m)
        m->has_thread = false;
}

void models_close(struct models **models)
{
    struct models *all = *models;
    if (!all)
        return;
    *models = NULL;
    models_stop(all);
    for (size_t i = 0; i < all->n; i++) {
        mem_free(all->list[i]->name);
        mem_free(all->list[i]->path);
        expert_picture_close(&all->list[i]->picture);
        mem_free(all->list[i]);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    mem_free(all);
}
