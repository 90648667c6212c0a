#include "experts/fetch.h"

#include <assert.h>
#include <string.h>

/* Experts that are given at once while others are still being read: few enough that the reads behind them keep the
 * drive busy until they are looked after again. */
enum { WAVE = 8 };

err_code fetch_create(struct fetch *f, struct expert_slots *slots, struct read_requests *reads,
                      struct prefetch *prefetch, struct pool *pool, struct arena *arena, struct err *e)
{
    size_t most = (size_t)slots->n_expert;
    *f = (struct fetch){.slots = slots, .reads = reads, .prefetch = prefetch, .pool = pool};
    f->is_chosen = arena_calloc(arena, most, sizeof *f->is_chosen);
    f->missing = arena_calloc(arena, most, sizeof *f->missing);
    f->ready = arena_calloc(arena, most, sizeof *f->ready);
    f->given = arena_calloc(arena, most, sizeof *f->given);
    f->counters = arena_calloc(arena, (size_t)slots->n_layer, sizeof *f->counters);
    return f->is_chosen && f->missing && f->ready && f->given && f->counters
               ? ERR_OK
               : err_nomem(e, most * sizeof *f->missing, "fetching experts");
}

/* ---- looking after reads -------------------------------------------------------------------------------------- */

void fetch_feed(struct fetch *f)
{
    struct read_request *q;
    while (f->is_open && f->next < f->n_missing &&
           (q = requests_start(f->reads, f->layer, f->missing[f->next], false))) {
        q->is_wanted = true;
        f->next++;
    }
    if (!f->is_open || f->next == f->n_missing)
        prefetch_feed(f->prefetch);
    requests_submit(f->reads);
}

/* Ends a request; whether the expert is not being read any more. */
static bool finish(struct fetch *f, struct read_request *q)
{
    struct err why = {0};
    switch (request_finish(f->reads, q, &why)) {
    case READ_AGAIN:
    case READ_UPLOADING: return false;
    case READ_ABANDONED: break;
    case READ_FAILED:
        if (q->is_wanted && f->code == ERR_OK) {
            f->code = why.code;
            f->err = why;
        }
        break;
    case READ_DONE:
        if (q->is_wanted)
            f->ready[f->n_ready++] = q->expert;
        else if (f->is_open && f->next < f->n_missing) /* reads of a fetch that ended early must not keep all slots */
            slots_release(f->slots, q->layer, q->expert);
        else
            prefetch_take(f->prefetch, q->layer, q->expert);
    }
    return true;
}

/* Processes the first n parts that have arrived; whether a request has ended. */
static bool process(struct fetch *f, int n, struct pool *pool)
{
    struct read_request *ended[READ_REQUESTS_MAX];
    int n_ended = requests_process(f->reads, n, pool, ended);
    bool any = false;
    for (int i = 0; i < n_ended; i++)
        any = finish(f, ended[i]) || any;
    fetch_feed(f);
    return any;
}

/* Ends requests whose uploads have ended; whether a request has ended. */
static bool end_uploads(struct fetch *f, bool wait)
{
    struct read_request *ended[READ_REQUESTS_MAX];
    int n_ended = requests_uploaded(f->reads, wait, ended);
    for (int i = 0; i < n_ended; i++)
        finish(f, ended[i]);
    if (n_ended)
        fetch_feed(f);
    return n_ended > 0;
}

static void collect(struct fetch *f, bool wait)
{
    if (requests_collect(f->reads, wait))
        fetch_feed(f); /* the drive works on */
}

void fetch_advance(struct fetch *f, bool wait)
{
    bool any = false;
    f->is_advancing = true;
    while (f->reads->n_busy > 0) {
        any = end_uploads(f, wait && !any && f->reads->n_arrived == 0) || any; /* which take less than reads */
        collect(f, wait && !any && f->reads->n_arrived == 0);
        if (f->reads->n_arrived == 0)
            break;
        any = process(f, f->reads->n_arrived, f->pool) || any;
    }
    f->is_advancing = false;
}

/* Operations take their time: reads that end meanwhile make room for others. */
static void after_operation(void *fetch)
{
    fetch_advance(fetch, false);
}

/* One part at a time, so that the other threads of the loop don't wait for this one. */
static void after_task(void *fetch)
{
    struct fetch *f = fetch;
    if (f->is_advancing || f->reads->n_busy == 0)
        return;
    collect(f, false);
    if (f->reads->n_arrived > 0)
        process(f, 1, NULL);
}

err_code fetch_open(struct fetch *f, struct err *e)
{
    if (f->reads->queue)
        return ERR_OK;
    TRY(requests_open(f->reads, e));
    backend_set_between(f->slots->device, after_operation, f);
    pool_set_between(f->pool, after_task, f);
    return ERR_OK;
}

void fetch_close(struct fetch *f)
{
    if (!f->reads || !f->reads->queue)
        return;
    backend_set_between(f->slots->device, NULL, NULL);
    pool_set_between(f->pool, NULL, NULL);
}

/* ---- a fetch --------------------------------------------------------------------------------------------------- */

static void release(struct fetch *f, const int32_t *experts, int64_t *n)
{
    for (int64_t i = 0; i < *n; i++)
        slots_release(f->slots, f->layer, experts[i]);
    *n = 0;
}

void fetch_end(struct fetch *f)
{
    if (!f->is_open)
        return;
    release(f, f->given, &f->n_given);
    release(f, f->ready, &f->n_ready);
    for (int i = 0; i < f->reads->n_request; i++)
        f->reads->requests[i].is_wanted = false;
    f->is_open = false;
}

/* Sorts a chosen expert in: it is ready, being read, or missing. */
static void choose(struct fetch *f, int32_t expert)
{
    struct read_request *q = requests_find(f->reads, f->layer, expert);
    bool has_slot = slots_find(f->slots, f->layer, expert) >= 0, hit = has_slot && !q;
    prefetch_note_use(f->prefetch, f->layer, expert, has_slot);
    if (q) {
        request_want(f->reads, q);
    } else if (hit) {
        slots_hold(f->slots, f->layer, expert);
        f->ready[f->n_ready++] = expert;
    } else {
        f->missing[f->n_missing++] = expert;
    }
    f->n_left++;
    struct experts_layer_counters *c = &f->counters[f->layer];
    *(hit ? &c->n_found : &c->n_read) += 1;
    *(hit ? &f->n_hit : &f->n_miss) += 1;
    if (f->is_decode)
        *(hit ? &f->n_decode_hit : &f->n_decode_miss) += 1;
}

/* Marks the experts that are among ids. */
static void mark_chosen(struct fetch *f, int layer, const int32_t *ids, int64_t n)
{
    memset(f->is_chosen, 0, (size_t)f->slots->layers[layer].d.n_expert * sizeof *f->is_chosen);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0) {
            assert(slots_is_here(f->slots, layer, ids[i]));
            f->is_chosen[ids[i]] = true;
        }
}

void fetch_count_resident(struct fetch *f, int layer, const int32_t *ids, int64_t n)
{
    assert(!f->is_open && f->slots->layers[layer].group->is_resident);
    mark_chosen(f, layer, ids, n);
    for (int64_t i = 0; i < f->slots->layers[layer].d.n_expert; i++)
        f->counters[layer].n_found += f->is_chosen[i];
}

void fetch_begin(struct fetch *f, int layer, const int32_t *ids, int64_t n_tok, int64_t n_used, bool is_decode)
{
    int64_t n_expert = f->slots->layers[layer].d.n_expert;
    fetch_end(f);
    assert(!f->slots->layers[layer].group->is_resident);
    f->is_open = true;
    f->layer = layer;
    f->n_tok = n_tok;
    f->is_decode = is_decode;
    f->reads->is_single_token = n_tok == 1;
    f->n_left = f->n_missing = f->next = 0;
    f->code = ERR_OK;
    mark_chosen(f, layer, ids, n_tok * n_used);
    for (int32_t i = 0; i < n_expert; i++)
        if (f->is_chosen[i])
            choose(f, i);
    prefetch_end(f->prefetch);
    fetch_feed(f);
}

/* Advances until something can be given. */
static err_code wait_ready(struct fetch *f, struct err *e)
{
    TRY(fetch_open(f, e));
    fetch_feed(f);
    fetch_advance(f, false);
    while (f->code == ERR_OK && f->n_ready == 0 && f->n_left > 0) {
        /* Slots are held by requests alone, and by a prediction that begins when all that is missing has been
         * requested: so a slot can always be had. */
        assert(f->reads->n_busy > 0);
        fetch_advance(f, true);
    }
    return f->code == ERR_OK ? ERR_OK : err_set(e, f->code, "%s", f->err.text);
}

err_code fetch_next(struct fetch *f, int32_t *table, int64_t *n, struct err *e)
{
    assert(f->is_open);
    *n = 0;
    release(f, f->given, &f->n_given);
    int64_t stall_ns = f->reads->stall_ns;
    err_code code = wait_ready(f, e);
    f->counters[f->layer].wait_ns += f->reads->stall_ns - stall_ns;
    if (code != ERR_OK) {
        fetch_end(f);
        return code;
    }
    memset(table, 0xff, (size_t)f->slots->layers[f->layer].d.n_expert * sizeof *table); /* all -1 */
    bool is_reading = f->reads->n_busy > 0 || f->next < f->n_missing;
    while (f->n_ready > 0 && (*n < WAVE || !is_reading)) {
        int32_t expert = f->ready[--f->n_ready];
        table[expert] = (int32_t)slots_find(f->slots, f->layer, expert);
        f->given[f->n_given++] = expert;
        ++*n;
    }
    f->n_left -= *n;
    return ERR_OK;
}
