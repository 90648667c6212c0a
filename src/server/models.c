#include "server/models.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/hide_folders.h"
#include "server/models_internal.h"

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

void models_end_waits(struct models *all, const struct served_model *m, const struct err *e)
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

void models_give_up(struct models *all, struct served_model *m, const struct err *e)
{
    log_line(all->options.log, LOG_WARN, "model %s: %s", m->name, e->text);
    m->error = *e;
    hide_folders(m->path, &m->error);
    if (all->told == m)
        all->told = NULL;
    struct err told = m->error;
    (void)!err_prefix(&told, "model"); /* the field that names it */
    models_end_waits(all, m, &told);
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
    if (pthread_create(&m->thread, NULL, model_drive, m) != 0) {
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
        models_end_waits(all, m, NULL);
    else if (all->current && all->current != m && is_idle(all->current))
        end_current(all);
    err_code code = all->current ? ERR_OK : start(all, m, e);
    if (code != ERR_OK)
        models_give_up(all, m, e);
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

const char *models_template(const struct served_model *m)
{
    return m->tmpl ? moebius_template_source(m->tmpl) : moebius_vocab_template(m->vocab, NULL);
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

void models_stop_loading(struct models *all)
{
    struct err e = {0};
    err_set(&e, ERR_CANCELLED, "the server is ending");
    pthread_mutex_lock(&all->lock);
    all->stops = true;
    models_end_waits(all, NULL, &e);
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
