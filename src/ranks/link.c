#include "ranks/link_internal.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static const int64_t SPIN_NS = 100 * LINK_MS, REST_NS = LINK_MS; /* of waits */

int link_first_peer(const struct link *l)
{
    return l->rank ? 0 : 1;
}

int link_end_peer(const struct link *l)
{
    return l->rank ? 1 : l->n_rank;
}

void link_lock(struct link *l)
{
    pthread_mutex_lock(&l->mpi);
}

void link_unlock(struct link *l)
{
    pthread_mutex_unlock(&l->mpi);
}

bool link_is_done(struct peer *p, MPI_Request *r)
{
    int done = 1;
    if (*r != MPI_REQUEST_NULL && MPI_Test(r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        atomic_store(&p->has_failed, true);
        return false;
    }
    return done;
}

void link_note_code(struct peer *p, int mpi_code)
{
    if (mpi_code != MPI_SUCCESS)
        atomic_store(&p->has_failed, true);
}

bool link_is_pending(MPI_Request r)
{
    int done = 1;
    if (r != MPI_REQUEST_NULL)
        MPI_Request_get_status(r, &done, MPI_STATUS_IGNORE);
    return !done;
}

void link_step(struct link *l)
{
    atomic_fetch_add_explicit(&l->n_step, 1, memory_order_relaxed);
}

void link_watch(struct link *l, bool (*is_excused)(void *user), void *user)
{
    link_lock(l);
    l->is_excused = is_excused;
    l->excused_user = user;
    link_unlock(l);
}

void link_rest(struct link *l, int64_t begin_ns)
{
    int64_t ns = clock_ns() - begin_ns;
    link_step(l);
    if (ns < l->keep_ns)
        return;
    if (ns < SPIN_NS)
        sched_yield(); /* another process of this machine may be what is awaited */
    else
        clock_sleep_ns(REST_NS);
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

err_code link_check(const struct link *l, struct err *e)
{
    return atomic_load(&l->is_lost) ? err_set(e, ERR_FAIL, "%s", l->lost_text) : ERR_OK;
}

static err_code wait_sent(struct link *l, struct peer *p, MPI_Request *r, struct err *e)
{
    for (int64_t begin = clock_ns();; link_rest(l, begin)) {
        link_lock(l);
        bool done = link_is_done(p, r);
        link_unlock(l);
        if (done)
            return ERR_OK;
        atomic_store(&p->is_awaited, true);
        TRY(link_check(l, e));
    }
}

/* ---- requests and answers ------------------------------------------------------------------------------------ */

static err_code grow(void **room, size_t *n_have, size_t n_bytes, struct err *e)
{
    size_t n = n_bytes + n_bytes / 4;
    if (n_bytes <= *n_have)
        return ERR_OK;
    if (*room)
        mem_unmap(*room, *n_have, MEM_SCRATCH);
    *n_have = 0;
    *room = mem_map(n, MEM_SCRATCH);
    if (!*room)
        return err_nomem(e, n, "messages between ranks");
    *n_have = n;
    return ERR_OK;
}

int link_n_units(size_t n_bytes)
{
    assert(n_bytes % LINK_UNIT == 0 && n_bytes / LINK_UNIT <= INT32_MAX);
    return (int)(n_bytes / LINK_UNIT);
}

err_code link_room(struct link *l, int rank, size_t n_bytes, void **out, struct err *e)
{
    struct peer *p = &l->peers[rank];
    TRY(link_check(l, e)); /* what was awaited of a lost rank stays */
    err_code code = wait_sent(l, p, &p->out, e);
    atomic_store(&p->is_awaited, false);
    TRY(code);
    TRY(grow(&p->room, &p->room_bytes, n_bytes, e));
    *out = p->room;
    return ERR_OK;
}

static void send_room(struct link *l, int rank, int tag, size_t n_bytes)
{
    struct peer *p = &l->peers[rank];
    link_lock(l);
    p->out_bytes = n_bytes;
    p->n_sent++;
    link_note_code(p, MPI_Isend(p->room, link_n_units(n_bytes), MPI_INT32_T, rank, tag, l->comm, &p->out));
    bool is_busy = n_bytes >= LINK_LARGE_BYTES && link_is_pending(p->out);
    link_unlock(l);
    if (is_busy)
        link_wake_tender(l);
}

void link_send(struct link *l, int rank, size_t n_bytes)
{
    send_room(l, rank, TAG_REQUEST, n_bytes);
}

void link_expect(struct link *l, int rank, void *head, size_t head_bytes, void *body, size_t body_bytes,
                 int64_t patience_ns)
{
    struct peer *p = &l->peers[rank];
    atomic_store(&p->patience_ns, patience_ns);
    link_lock(l);
    assert(p->head_in == MPI_REQUEST_NULL && p->body_in == MPI_REQUEST_NULL); /* one answer at a time */
    p->body_bytes = body_bytes;
    link_note_code(p, MPI_Irecv(head, link_n_units(head_bytes), MPI_INT32_T, rank, TAG_HEAD, l->comm, &p->head_in));
    link_note_code(p, MPI_Irecv(body, link_n_units(body_bytes), MPI_INT32_T, rank, TAG_BODY, l->comm, &p->body_in));
    link_unlock(l);
    atomic_store(&p->is_awaited, true);
    if (body_bytes >= LINK_LARGE_BYTES)
        link_wake_tender(l);
}

/* Whether both messages of an answer are there; *body_bytes once the second one is. */
static bool has_answer(struct link *l, struct peer *p, size_t *body_bytes)
{
    int done = 1, n = 0;
    MPI_Status status;
    link_lock(l);
    if (p->body_in != MPI_REQUEST_NULL) {
        link_note_code(p, MPI_Test(&p->body_in, &done, &status));
        if (done && MPI_Get_count(&status, MPI_INT32_T, &n) == MPI_SUCCESS)
            *body_bytes = (size_t)n * LINK_UNIT;
    }
    done = done && link_is_done(p, &p->head_in) && !atomic_load(&p->has_failed);
    if (done) {
        link_hear(p);
        atomic_store(&p->idle_ns, 0);
    }
    link_unlock(l);
    return done;
}

void link_cancel(struct link *l, int rank)
{
    link_lock(l);
    l->peers[rank].owes_cancel = true;
    link_send_note(l, rank);
    link_unlock(l);
}

err_code link_wait(struct link *l, int rank, const struct cancel *c, size_t *body_bytes, struct err *e)
{
    struct peer *p = &l->peers[rank];
    int64_t begin = clock_ns(), asked = begin;
    bool is_cancelled = false;
    size_t n = 0;
    err_code code = ERR_OK;
    for (; code == ERR_OK && !has_answer(l, p, &n); link_rest(l, begin)) {
        if (!is_cancelled && clock_ns() - asked > REST_NS) {
            asked = clock_ns();
            is_cancelled = cancel_is_wanted(c);
            if (is_cancelled)
                link_cancel(l, rank);
        }
        code = link_check(l, e);
    }
    atomic_store(&p->is_awaited, false);
    if (body_bytes)
        *body_bytes = n;
    return code;
}

/* Begins to receive the next request if there is one; *n_bytes: of it. */
static bool take_request(struct link *l, MPI_Request *in, size_t *n_bytes, struct err *e, err_code *code)
{
    MPI_Message message;
    MPI_Status status;
    int there = 0, n = 0;
    link_lock(l);
    link_note_code(&l->peers[0], MPI_Improbe(0, TAG_REQUEST, l->comm, &there, &message, &status));
    if (there && MPI_Get_count(&status, MPI_INT32_T, &n) == MPI_SUCCESS) {
        n = n > 0 ? n : 0; /* MPI_UNDEFINED, of what is no whole units, is less */
        link_unlock(l);    /* growing may wait for memory */
        *n_bytes = (size_t)n * LINK_UNIT;
        *code = grow(&l->request, &l->request_capacity, *n_bytes, e);
        link_lock(l);
        if (*code == ERR_OK)
            link_note_code(&l->peers[0], MPI_Imrecv(l->request, n, MPI_INT32_T, &message, in));
    }
    link_unlock(l);
    return there;
}

err_code link_take(struct link *l, const void **request, size_t *n_bytes, struct err *e)
{
    struct peer *p = &l->peers[0];
    MPI_Request in = MPI_REQUEST_NULL;
    int64_t begin = clock_ns();
    err_code code = ERR_OK;
    atomic_store(&p->is_awaited, true);
    while (!take_request(l, &in, n_bytes, e, &code)) {
        TRY(link_check(l, e));
        if (atomic_load(&l->has_goodbye))
            return err_set(e, ERR_CANCELLED, "rank 0 has ended");
        link_rest(l, begin);
    }
    TRY(code);
    TRY(wait_sent(l, p, &in, e));
    atomic_store(&p->is_awaited, false);
    link_lock(l);
    link_hear(p);
    link_unlock(l);
    l->n_taken++;
    *request = l->request;
    return ERR_OK;
}

err_code link_answer(struct link *l, const void *head, size_t head_bytes, size_t n_bytes, struct err *e)
{
    struct peer *p = &l->peers[0];
    assert(head_bytes <= LINK_HEAD_ROOM);
    TRY(wait_sent(l, p, &l->head_out, e));
    memcpy(l->head, head, head_bytes);
    link_lock(l);
    link_note_code(p, MPI_Isend(l->head, link_n_units(head_bytes), MPI_INT32_T, 0, TAG_HEAD, l->comm, &l->head_out));
    link_unlock(l);
    send_room(l, 0, TAG_BODY, n_bytes);
    return ERR_OK;
}

bool link_is_cancelled(const struct link *l)
{
    return atomic_load(&l->n_cancelled) == l->n_taken || atomic_load(&l->has_goodbye);
}

/* ---- facts --------------------------------------------------------------------------------------------------- */

int link_rank(const struct link *l)
{
    return l->rank;
}

int link_n_rank(const struct link *l)
{
    return l->n_rank;
}

const struct link_card *link_card(const struct link *l, int rank)
{
    return &l->cards[rank];
}

const char *link_name(const struct link *l, int rank)
{
    return l->peers[rank].name;
}

int64_t link_round_trip_ns(const struct link *l, int rank)
{
    return l->peers[rank].round_trip_ns;
}

double link_bytes_per_s(const struct link *l, int rank)
{
    return l->peers[rank].bytes_per_s;
}
