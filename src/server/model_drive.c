/* The thread of a model that is loaded: from opening its engine to closing it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "server/hide_folders.h"
#include "server/models_internal.h"

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
    if (!m->leaves) /* even waits that came later than others', so that it is not unloaded before it served them */
        models_end_waits(all, m, NULL);
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
    models_give_up(m->models, m, e);
    pthread_mutex_unlock(&m->models->lock);
}

static void tell_end(const struct served_model *m)
{
    const struct model_opener *o = &m->models->options.opener;
    const struct texts_stats stats = texts_stats(m->texts);
    o->ends(o->user, m->path, m->engine, &stats);
}

void *model_drive(void *user)
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
