#include "texts/texts_internal.h"

#include <assert.h>

#include "base/mem.h"

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static err_code open_texts(struct texts *x, struct err *e)
{
    size_t n = x->options.n_texts;
    if (n == 0 || n > INT32_MAX || x->options.n_ctx < 0 || x->options.n_batch < 0)
        return err_set(e, ERR_USAGE,
                       "%zu texts at once, of %lld tokens, in batches of %lld: expected at least one text", n,
                       (long long)x->options.n_ctx, (long long)x->options.n_batch);
    if (x->options.n_draft < 0 || (x->options.n_draft && x->options.session.car.threshold > 0))
        return err_set(e, ERR_USAGE, "guesses of %lld tokens: expected 0 or more, and none with cache-aware routing",
                       (long long)x->options.n_draft);
    x->running = mem_calloc(n, sizeof *x->running);
    x->in_pass = mem_calloc(n, sizeof *x->in_pass);
    x->items = mem_calloc(n, sizeof *x->items);
    if (!x->running || !x->in_pass || !x->items || !pace_open(&x->pace, n, x->options.max_stall_ns))
        return err_nomem(e, n * sizeof *x->items, "texts");
    TRY(prefix_open(&x->index, e));
    if (!x->options.cache_dir)
        return ERR_OK;
    return prefix_files_open(&x->files, x->options.cache_dir, (uint64_t)x->options.cache_bytes, x->options.log, e);
}

err_code texts_open(struct texts **out, moebius_engine *engine, const struct texts_options *options, struct err *e)
{
    struct texts *x = *out = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "texts");
    x->options = *options;
    x->setup = (struct text_setup){.engine = engine,
                                   .max_piece = answer_longest_piece(moebius_engine_vocab(engine)),
                                   .n_ctx = options->n_ctx ? options->n_ctx : moebius_n_ctx_train(engine)};
    x->has_mtp = options->n_draft && moebius_has_mtp(engine);
    x->n_room = options->n_texts;
    x->kept.index = &x->index;
    x->kept.logits_bytes = (size_t)moebius_n_vocab(engine) * sizeof(float);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->wake, NULL);
    err_code code = open_texts(x, e);
    if (code != ERR_OK)
        texts_close(out);
    return code;
}

/* New texts begin to wait. */
static void take_inbox(struct texts *x)
{
    pthread_mutex_lock(&x->lock);
    struct text *t = x->inbox, *in_order = NULL, *next;
    x->inbox = NULL;
    pthread_mutex_unlock(&x->lock);
    for (; t; t = next) {
        next = t->next;
        t->next = in_order;
        in_order = t;
    }
    for (t = in_order; t; t = next) {
        next = t->next;
        t->next = NULL;
        prefix_set(&x->index, &t->entry, t->ids, t->n_ids);
        turns_add(&x->waiting, t);
    }
}

/* Ends all texts, or those that were cancelled. */
static void end_cancelled(struct texts *x, bool all)
{
    struct text *next;
    for (struct text *t = x->waiting.first; t; t = next) {
        next = t->next;
        if (all || atomic_load(&t->is_cancelled))
            texts_end(x, t, TEXT_END_CANCELLED, NULL);
    }
    for (size_t i = x->n_running; i-- > 0;)
        if (all || atomic_load(&x->running[i]->is_cancelled))
            texts_end(x, x->running[i], TEXT_END_CANCELLED, NULL);
}

void texts_close(struct texts **texts)
{
    struct texts *x = *texts;
    if (!x)
        return;
    take_inbox(x);
    end_cancelled(x, true);
    kept_close(&x->kept);
    prefix_files_close(&x->files);
    prefix_close(&x->index);
    pace_close(&x->pace);
    pthread_cond_destroy(&x->wake);
    pthread_mutex_destroy(&x->lock);
    mem_free(x->running);
    mem_free(x->in_pass);
    mem_free(x->items);
    mem_free(x);
    *texts = NULL;
}

int64_t texts_n_ctx(const struct texts *texts)
{
    return texts->setup.n_ctx;
}

bool texts_is_streaming(const struct texts *x)
{
    const moebius_counters c = moebius_engine_counters(x->setup.engine);
    return c.expert_bytes < c.expert_all_bytes;
}

/* ---- texts come and go ----------------------------------------------------------------------------------------- */

/* Notes a new text; ERR_LIMIT: there are too many. */
static err_code enter(struct texts *x, struct text *t, struct err *e)
{
    bool is_full = x->n_live >= x->options.n_texts + x->options.n_queue;
    if (atomic_load(&x->is_stopped))
        return err_set(e, ERR_CANCELLED, "no more texts are taken");
    if (is_full && !t->request.follows) {
        x->told.n_refused++;
        return err_set(e, ERR_LIMIT, "%zu texts wait already: try again later", x->options.n_queue);
    }
    t->id = ++x->n_ids;
    t->entry.owner = t;
    t->next_live = x->live;
    if (x->live)
        x->live->prev_live = t;
    x->live = t;
    x->n_live++;
    t->next = x->inbox;
    x->inbox = t;
    pthread_cond_signal(&x->wake);
    return ERR_OK;
}

err_code texts_submit(struct texts *texts, const struct text_request *request, uint64_t *id, struct err *e)
{
    struct text *t = NULL;
    assert(request->sink.end);
    TRY(text_open(&t, &texts->setup, request, e));
    pthread_mutex_lock(&texts->lock);
    err_code code = enter(texts, t, e);
    *id = code == ERR_OK ? t->id : 0; /* the text may be gone when the lock is */
    pthread_mutex_unlock(&texts->lock);
    if (code != ERR_OK)
        text_close(&t);
    return code;
}

void texts_cancel(struct texts *texts, uint64_t id)
{
    pthread_mutex_lock(&texts->lock);
    for (struct text *t = texts->live; t; t = t->next_live)
        if (t->id == id)
            atomic_store(&t->is_cancelled, true);
    pthread_mutex_unlock(&texts->lock);
}

/* The text can't be cancelled any more. */
static void forget(struct texts *x, struct text *t)
{
    pthread_mutex_lock(&x->lock);
    if (t->next_live)
        t->next_live->prev_live = t->prev_live;
    *(t->prev_live ? &t->prev_live->next_live : &x->live) = t->next_live;
    x->n_live--;
    pthread_mutex_unlock(&x->lock);
}

void texts_take_out(struct texts *x, const struct text *t)
{
    size_t i = 0;
    while (x->running[i] != t)
        i++;
    for (x->n_running--; i < x->n_running; i++)
        x->running[i] = x->running[i + 1];
}

/* A running text has ended: with its memory there may be room for another one. */
static void stop_running(struct texts *x, const struct text *t)
{
    texts_take_out(x, t);
    if (++x->n_since_full >= x->n_room && x->n_room < x->options.n_texts) {
        x->n_since_full = 0;
        x->n_room++;
    }
}

void texts_end(struct texts *x, struct text *t, enum text_end why, const struct err *error)
{
    if (t->session)
        stop_running(x, t);
    else
        turns_remove(&x->waiting, t);
    t->end = why;
    if (error)
        t->error = *error;
    prefix_entry_close(&x->index, &t->entry);
    kept_add(&x->kept, &t->session, &t->scores);
    forget(x, t);
    x->stats.n_ended[why]++;
    text_tell_end(t, &x->setup);
    text_close(&t);
}

/* ---- driving --------------------------------------------------------------------------------------------------- */

/* Makes the figures those that others see. */
static void tell_stats(struct texts *x)
{
    x->stats.n_kept = x->kept.n;
    x->stats.kept_bytes = kept_bytes(&x->kept);
    if (x->files) {
        const struct prefix_files_stats s = prefix_files_stats(x->files);
        x->stats.disk_bytes = s.n_bytes;
        x->stats.n_disk_read = s.n_read;
        x->stats.n_disk_written = s.n_written;
    }
    pthread_mutex_lock(&x->lock);
    x->stats.n_running = x->n_running;
    x->stats.n_waiting = x->n_live - x->n_running;
    x->stats.n_refused = x->told.n_refused;
    x->told = x->stats;
    pthread_mutex_unlock(&x->lock);
}

err_code texts_step(struct texts *texts, bool *is_idle, struct err *e)
{
    struct texts *x = texts;
    take_inbox(x);
    end_cancelled(x, atomic_load(&x->is_stopped));
    texts_join(x);
    const bool used_disk = texts_use_disk(x), has_texts = x->n_running > 0 || x->waiting.n > 0;
    err_code code = has_texts ? texts_pass(x, e) : ERR_OK;
    *is_idle = !used_disk && !has_texts;
    tell_stats(x);
    if (x->options.stepped)
        x->options.stepped(x->options.stepped_user, *is_idle);
    return code;
}

/* A step failed: so do all that it was for. */
static void fail_running(struct texts *x, const struct err *why)
{
    for (size_t i = x->n_running; i-- > 0;)
        texts_end(x, x->running[i], TEXT_END_FAILED, why);
}

static void wait_for_texts(struct texts *x)
{
    pthread_mutex_lock(&x->lock);
    while (!x->inbox && !x->is_poked && !atomic_load(&x->is_stopped))
        pthread_cond_wait(&x->wake, &x->lock);
    x->is_poked = false;
    pthread_mutex_unlock(&x->lock);
}

void texts_run(struct texts *texts)
{
    struct err e = {0};
    bool is_idle;
    while (!atomic_load(&texts->is_stopped)) {
        if (texts_step(texts, &is_idle, &e) != ERR_OK)
            fail_running(texts, &e);
        else if (is_idle)
            wait_for_texts(texts);
    }
    (void)!texts_step(texts, &is_idle, &e); /* ends all */
}

void texts_poke(struct texts *texts)
{
    pthread_mutex_lock(&texts->lock);
    texts->is_poked = true;
    pthread_cond_signal(&texts->wake);
    pthread_mutex_unlock(&texts->lock);
}

void texts_stop(struct texts *texts)
{
    pthread_mutex_lock(&texts->lock);
    atomic_store(&texts->is_stopped, true);
    pthread_cond_signal(&texts->wake);
    pthread_mutex_unlock(&texts->lock);
}

struct texts_stats texts_stats(struct texts *texts)
{
    pthread_mutex_lock(&texts->lock);
    struct texts_stats s = texts->told;
    s.n_waiting = texts->n_live > s.n_running ? texts->n_live - s.n_running : 0;
    pthread_mutex_unlock(&texts->lock);
    return s;
}
