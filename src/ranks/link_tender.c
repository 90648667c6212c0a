#define _GNU_SOURCE
#include "ranks/link_internal.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ranks/siblings.h"

enum { NOTE_LIFE, NOTE_CANCEL, NOTE_END };

/* Of the tender, without large messages and with some. */
static const int64_t TICK_NS = 10 * LINK_MS, PUSH_NS = LINK_MS / 10;
static const int64_t LIFE_NS = 1000 * LINK_MS;      /* between signs of life */
static const int64_t LAST_WORDS_NS = 250 * LINK_MS; /* for the others to be heard when the run is ended */
static const int64_t LINGER_NS = 600 * LINK_MS;     /* of other ranks then, so that rank 0 is first to speak */
static const int64_t LEAVE_NS = 2000 * LINK_MS;     /* from rank 0's goodbye or death to the end of this process */
/* From the start of a process until all have met, where one has been stopped and at all. */
static const int64_t STOPPED_NS = 6000 * LINK_MS, MEET_NS = 30000 * LINK_MS;
static const int64_t WAKING_NS = 200 * LINK_MS; /* more between two ticks: this process did not run */
static const int64_t END_NS = 8000 * LINK_MS;   /* for the end of MPI */

/* ---- notes --------------------------------------------------------------------------------------------------- */

void link_listen(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    link_note_code(p, MPI_Irecv(p->note_got, 2, MPI_INT32_T, rank, TAG_NOTE, l->comm, &p->note_in));
}

/* Sends what is owed, one note at a time: a rank that does not run takes none. */
void link_send_note(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    if (!(p->owes_end || p->owes_cancel || p->owes_life) || !link_is_done(p, &p->note_out))
        return;
    if (p->owes_cancel) {
        p->note_sent[0] = NOTE_CANCEL;
        p->note_sent[1] = (int32_t)p->n_sent;
        p->owes_cancel = false;
    } else {
        p->note_sent[0] = p->owes_end ? NOTE_END : NOTE_LIFE;
        p->note_sent[1] = atomic_load_explicit(&l->n_step, memory_order_relaxed);
        p->owes_end = false;
    }
    p->owes_life = false;
    link_note_code(p, MPI_Isend(p->note_sent, 2, MPI_INT32_T, rank, TAG_NOTE, l->comm, &p->note_out));
}

void link_hear(struct peer *p)
{
    p->n_heard++;
    p->silent_ns = 0;
}

void link_take_note(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    while (p->note_in != MPI_REQUEST_NULL && link_is_done(p, &p->note_in)) {
        link_hear(p);
        if (p->note_got[0] == NOTE_LIFE && p->note_got[1] != p->n_step) {
            p->n_step = p->note_got[1];
            atomic_store(&p->idle_ns, 0);
        }
        if (p->note_got[0] == NOTE_CANCEL)
            atomic_store(&l->n_cancelled, (unsigned)p->note_got[1]);
        if (p->note_got[0] == NOTE_END) {
            p->has_ended = true;
            if (rank == 0)
                atomic_store(&l->has_goodbye, true);
            return; /* nothing comes after it */
        }
        link_listen(l, rank);
    }
}

/* ---- losses -------------------------------------------------------------------------------------------------- */

static void lose(struct link *l, const char *sentence)
{
    struct err e;
    if (atomic_load(&l->is_lost))
        return;
    err_set(&e, ERR_FAIL, "%s", sentence);
    memcpy(l->lost_text, e.text, sizeof l->lost_text);
    atomic_store(&l->is_lost, true);
    if (l->params.lost)
        l->params.lost(l->params.user, l->lost_text);
}

static void lose_rank(struct link *l, int rank, const char *how)
{
    char sentence[ERR_TEXT_BYTES];
    const struct link_card *c = &l->cards[rank];
    snprintf(sentence, sizeof sentence, "rank %d (%s, process %d) %s", rank, c->host, (int)c->process, how);
    lose(l, sentence);
}

static bool has_died(const struct peer *p)
{
    struct pollfd fd = {.fd = p->pidfd, .events = POLLIN};
    return p->pidfd >= 0 && poll(&fd, 1, 0) > 0;
}

/* Another rank leaves it to rank 0 and to what started the processes to say why. */
static void look_after(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    if ((l->rank == 0 && atomic_load(&l->is_leaving)) || (p->has_ended && !p->is_missed))
        return;
    if (p->is_missed)
        lose_rank(l, rank, "has ended");
    else if (has_died(p) && l->rank == 0)
        lose_rank(l, rank, "has died");
    else if (has_died(p)) {
        clock_sleep_ns(LEAVE_NS);
        _exit(ERR_FAIL);
    } else if (p->silent_ns > LINK_SILENCE_NS && atomic_load(&p->is_awaited)) {
        char how[64];
        snprintf(how, sizeof how, "has not been heard of for %d s", (int)(p->silent_ns / (1000 * LINK_MS)));
        lose_rank(l, rank, how);
    } else if (p->idle_ns > p->patience_ns && atomic_load(&p->is_awaited)) {
        char how[64];
        snprintf(how, sizeof how, "lives, but has not gone on for %d s", (int)(p->idle_ns / (1000 * LINK_MS)));
        lose_rank(l, rank, how);
    } else if (atomic_load(&p->has_failed))
        lose_rank(l, rank, "can't be reached any more");
}

/* The run is ended from outside, because a rank has died or somebody wants it: whoever is not heard of any more is why.
 */
static void end_run(struct link *l)
{
    int64_t n_heard[LINK_MAX_RANK] = {0};
    if (!atomic_load(&l->has_met) || atomic_load(&l->is_leaving))
        _exit(ERR_FAIL); /* what started the processes says why, or this one has */
    for (int i = link_first_peer(l); i < link_end_peer(l); i++)
        n_heard[i] = l->peers[i].n_heard;
    for (int64_t end = clock_ns() + (l->rank ? LINGER_NS : LAST_WORDS_NS); clock_ns() < end; clock_sleep_ns(LINK_MS)) {
        link_lock(l);
        for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
            l->peers[i].owes_life = true;
            link_send_note(l, i);
            link_take_note(l, i);
        }
        link_unlock(l);
    }
    for (int i = link_first_peer(l); i < link_end_peer(l) && l->rank == 0; i++)
        if (has_died(&l->peers[i]) || l->peers[i].n_heard == n_heard[i])
            lose_rank(l, i, "has died");
    if (l->rank == 0)
        lose(l, "the run was ended from outside (SIGTERM)");
    _exit(ERR_FAIL);
}

/* ---- the tender ---------------------------------------------------------------------------------------------- */

/* Moves messages on; whether large ones are on their way. */
static bool push(struct link *l)
{
    bool is_busy = false;
    for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
        const struct peer *p = &l->peers[i];
        is_busy |= p->out_bytes >= LINK_LARGE_BYTES && link_is_pending(p->out);
        is_busy |= p->body_bytes >= LINK_LARGE_BYTES && link_is_pending(p->body_in);
    }
    return is_busy;
}

static void exchange_notes(struct link *l, int rank, int64_t now)
{
    struct peer *p = &l->peers[rank];
    if (now - p->life_ns >= LIFE_NS) {
        if (!l->is_excused || l->is_excused(l->excused_user))
            link_step(l);
        p->owes_life = true;
        p->life_ns = now;
    }
    link_send_note(l, rank);
    link_take_note(l, rank);
}

/* MPI waits for whoever has not come yet, for ever. */
static void meet(struct link *l, int64_t now)
{
    char sentence[ERR_TEXT_BYTES] = "";
    struct sibling s;
    if (now - l->open_ns > STOPPED_NS && siblings_find_stopped(&s))
        snprintf(sentence, sizeof sentence,
                 "rank %d (process %d) has been stopped before the processes of this run met", s.rank, s.process);
    else if (now - l->open_ns > MEET_NS)
        snprintf(sentence, sizeof sentence,
                 "the processes of this run have not met within %d s: expected that all of them run",
                 (int)(MEET_NS / (1000 * LINK_MS)));
    if (!*sentence)
        return;
    lose(l, sentence);
    _exit(ERR_FAIL);
}

/* What the tender does at each tick. While the link is closing MPI belongs to the other thread. */
static bool tend(struct link *l, int64_t now, int64_t past_ns)
{
    bool is_busy = false;
    if (!atomic_load(&l->has_met)) {
        meet(l, now);
        return false;
    }
    if (atomic_load(&l->is_closing)) {
        if (now - l->close_ns > END_NS)
            _exit(ERR_FAIL);
        return false;
    }
    link_lock(l);
    if (!atomic_load(&l->is_closing)) {
        is_busy = push(l);
        for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
            struct peer *p = &l->peers[i];
            int64_t awake_ns = past_ns < WAKING_NS ? past_ns : WAKING_NS;
            p->silent_ns += awake_ns;
            p->idle_ns = atomic_load(&p->is_awaited) ? p->idle_ns + awake_ns : 0;
            exchange_notes(l, i, now);
            p->is_missed = p->has_ended && l->rank == 0 && link_is_pending(p->head_in) && p->silent_ns > LIFE_NS;
        }
    }
    link_unlock(l);
    for (int i = link_first_peer(l); i < link_end_peer(l); i++)
        look_after(l, i);
    return is_busy;
}

void *link_tender_main(void *arg)
{
    struct link *l = arg;
    struct pollfd fds[] = {{.fd = l->wake_fd, .events = POLLIN}, {.fd = l->signal_fd, .events = POLLIN}};
    int64_t last = clock_ns(), goodbye_ns = 0;
    bool is_busy = false;
    while (!atomic_load(&l->is_stopped)) {
        uint64_t n;
        const struct timespec rest = {.tv_nsec = (long)(is_busy ? PUSH_NS : TICK_NS)};
        ppoll(fds, 2, &rest, NULL);
        if (fds[0].revents & POLLIN && read(l->wake_fd, &n, sizeof n) < 0)
            continue;
        if (fds[1].revents & POLLIN && !atomic_load(&l->is_closing))
            end_run(l);
        int64_t now = clock_ns();
        is_busy = tend(l, now, now - last);
        last = now;
        if (atomic_load(&l->has_goodbye) && !goodbye_ns)
            goodbye_ns = now;
        if (goodbye_ns && now - goodbye_ns > LEAVE_NS && !atomic_load(&l->is_closing))
            _exit(ERR_FAIL); /* the other thread is loading: nobody wants that any more */
    }
    return NULL;
}

void link_wake_tender(struct link *l)
{
    const uint64_t one = 1;
    if (write(l->wake_fd, &one, sizeof one) < 0)
        assert(errno == EAGAIN);
}
