#define _GNU_SOURCE
#include "ranks/link.h"

#include <assert.h>
#include <errno.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ranks/siblings.h"

#define MS ((int64_t)1000000)

enum { TAG_REQUEST = 1, TAG_HEAD, TAG_BODY, TAG_NOTE };
enum { NOTE_LIFE, NOTE_CANCEL, NOTE_END };
enum { UNIT = sizeof(int32_t) };                             /* what MPI counts */
enum { LARGE_BYTES = 64 << 10 };                             /* such messages need the tender */
enum { HEAD_ROOM = 4096 };                                   /* of an answer */
enum { N_SMALL = 16, N_LARGE = 3, PROBE_BYTES = 256 << 10 }; /* how often, and with what, a link is timed */

static const int64_t KEEP_NS = MS / 5;                     /* of waits: what a layer of decode may take */
static const int64_t SPIN_NS = 100 * MS, REST_NS = MS;     /* of waits */
static const int64_t TICK_NS = 10 * MS, PUSH_NS = MS / 10; /* of the tender, without and with large messages */
static const int64_t LIFE_NS = 1000 * MS;                  /* between signs of life */
static const int64_t LAST_WORDS_NS = 250 * MS;             /* for the others to be heard when the run is ended */
static const int64_t LINGER_NS = 600 * MS;                 /* of other ranks then, so that rank 0 is first to speak */
static const int64_t LEAVE_NS = 2000 * MS;                 /* from rank 0's goodbye to the end of this process */
static const int64_t CLOSE_NS = 4000 * MS;                 /* for all goodbyes, and for MPI's own end */
static const int64_t STOPPED_NS = 6000 * MS, MEET_NS = 30000 * MS; /* from the start of a process until all have met */
static const int64_t WAKING_NS = 200 * MS; /* more between two ticks: this process did not run */

/* Another process. What is not atomic is guarded by the link's mutex. */
struct peer {
    char name[LINK_HOST_BYTES + 24];
    int pidfd; /* -1: on another machine, or the system has none */

    MPI_Request out, head_in, body_in; /* MPI_REQUEST_NULL: done */
    size_t out_bytes, body_bytes;      /* of those two */
    void *room;                        /* [room_bytes], what is sent; used by the thread that sends */
    size_t room_bytes;
    uint32_t n_sent; /* requests to it */

    MPI_Request note_out, note_in;
    int32_t note_sent[2], note_got[2]; /* a kind, and for NOTE_CANCEL the number of a request */
    bool is_missed;                    /* it said goodbye without the answer that is awaited; the tender's */
    bool owes_life, owes_cancel, owes_end;
    int64_t life_ns;        /* when a sign of life was sent to it last */
    atomic_llong n_heard;   /* messages and notes from it */
    atomic_llong silent_ns; /* time awake since then */
    atomic_bool is_awaited; /* this process can't go on without it */
    atomic_bool has_failed; /* MPI says so */
    atomic_bool has_ended;  /* it said goodbye */
    int64_t round_trip_ns;
    double bytes_per_s;
};

struct link {
    MPI_Comm comm;
    int rank, n_rank;
    struct link_card *cards; /* [n_rank] */
    struct peer *peers;      /* [n_rank]; this process's own is unused */
    struct link_params params;

    pthread_mutex_t mpi; /* held for each call of MPI */
    pthread_t tender;
    bool has_tender;
    int64_t open_ns;     /* when this process began to look for the others */
    atomic_bool has_met; /* and found them: from then on the peers are there */
    int wake_fd, signal_fd;
    int64_t keep_ns;         /* so long a wait keeps its processor */
    atomic_bool is_stopped;  /* the tender is to end */
    atomic_bool is_leaving;  /* goodbyes are being said: rank 0 misses nobody */
    atomic_bool is_closing;  /* nobody is awaited any more */
    atomic_bool has_goodbye; /* of rank 0 */
    atomic_bool is_lost;
    char lost_text[ERR_TEXT_BYTES]; /* before is_lost is set */
    int64_t close_ns;               /* when closing began */

    /* other ranks */
    void *request; /* [request_capacity] */
    size_t request_capacity;
    uint32_t n_taken;        /* requests so far */
    atomic_uint n_cancelled; /* the number of the one that rank 0 cancelled last */
    MPI_Request head_out;    /* of the answer */
    unsigned char head[HEAD_ROOM];
};

/* The others that this process talks to: rank 0 to all, all to rank 0. */
static int first_peer(const struct link *l)
{
    return l->rank ? 0 : 1;
}

static int end_peer(const struct link *l)
{
    return l->rank ? 1 : l->n_rank;
}

static void lock(struct link *l)
{
    pthread_mutex_lock(&l->mpi);
}

static void unlock(struct link *l)
{
    pthread_mutex_unlock(&l->mpi);
}

/* Whether a request is done; one that failed is, and its rank has. Under the mutex, as all that follow. */
static bool is_done(struct peer *p, MPI_Request *r)
{
    int done = 1;
    if (*r != MPI_REQUEST_NULL && MPI_Test(r, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        atomic_store(&p->has_failed, true);
        return false;
    }
    return done;
}

static void check(struct peer *p, int mpi_code)
{
    if (mpi_code != MPI_SUCCESS)
        atomic_store(&p->has_failed, true);
}

/* ---- notes --------------------------------------------------------------------------------------------------- */

static void listen_to(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    check(p, MPI_Irecv(p->note_got, 2, MPI_INT32_T, rank, TAG_NOTE, l->comm, &p->note_in));
}

/* Sends what is owed, one note at a time: a rank that does not run takes none. */
static void send_note(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    if (!(p->owes_end || p->owes_cancel || p->owes_life) || !is_done(p, &p->note_out))
        return;
    if (p->owes_cancel) {
        p->note_sent[0] = NOTE_CANCEL;
        p->note_sent[1] = (int32_t)p->n_sent;
        p->owes_cancel = false;
    } else {
        p->note_sent[0] = p->owes_end ? NOTE_END : NOTE_LIFE;
        p->owes_end = false;
    }
    p->owes_life = false;
    check(p, MPI_Isend(p->note_sent, 2, MPI_INT32_T, rank, TAG_NOTE, l->comm, &p->note_out));
}

static void hear(struct peer *p)
{
    p->n_heard++;
    p->silent_ns = 0;
}

static void take_note(struct link *l, int rank)
{
    struct peer *p = &l->peers[rank];
    while (p->note_in != MPI_REQUEST_NULL && is_done(p, &p->note_in)) {
        hear(p);
        if (p->note_got[0] == NOTE_CANCEL)
            atomic_store(&l->n_cancelled, (unsigned)p->note_got[1]);
        if (p->note_got[0] == NOTE_END) {
            p->has_ended = true;
            if (rank == 0)
                atomic_store(&l->has_goodbye, true);
            return; /* nothing comes after it */
        }
        listen_to(l, rank);
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
        snprintf(how, sizeof how, "has not been heard of for %d s", (int)(p->silent_ns / (1000 * MS)));
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
    for (int i = first_peer(l); i < end_peer(l); i++)
        n_heard[i] = l->peers[i].n_heard;
    for (int64_t end = clock_ns() + (l->rank ? LINGER_NS : LAST_WORDS_NS); clock_ns() < end; clock_sleep_ns(MS)) {
        lock(l);
        for (int i = first_peer(l); i < end_peer(l); i++) {
            l->peers[i].owes_life = true;
            send_note(l, i);
            take_note(l, i);
        }
        unlock(l);
    }
    for (int i = first_peer(l); i < end_peer(l) && l->rank == 0; i++)
        if (has_died(&l->peers[i]) || l->peers[i].n_heard == n_heard[i])
            lose_rank(l, i, "has died");
    if (l->rank == 0)
        lose(l, "the run was ended from outside (SIGTERM)");
    _exit(ERR_FAIL);
}

/* ---- the tender ---------------------------------------------------------------------------------------------- */

static bool is_pending(MPI_Request r)
{
    int done = 1;
    if (r != MPI_REQUEST_NULL)
        MPI_Request_get_status(r, &done, MPI_STATUS_IGNORE);
    return !done;
}

/* Moves messages on; whether large ones are on their way. */
static bool push(struct link *l)
{
    bool is_busy = false;
    for (int i = first_peer(l); i < end_peer(l); i++) {
        const struct peer *p = &l->peers[i];
        is_busy |= p->out_bytes >= LARGE_BYTES && is_pending(p->out);
        is_busy |= p->body_bytes >= LARGE_BYTES && is_pending(p->body_in);
    }
    return is_busy;
}

static void exchange_notes(struct link *l, int rank, int64_t now)
{
    struct peer *p = &l->peers[rank];
    if (now - p->life_ns >= LIFE_NS) {
        p->owes_life = true;
        p->life_ns = now;
    }
    send_note(l, rank);
    take_note(l, rank);
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
                 (int)(MEET_NS / (1000 * MS)));
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
        if (now - l->close_ns > 2 * CLOSE_NS)
            _exit(ERR_FAIL);
        return false;
    }
    lock(l);
    if (!atomic_load(&l->is_closing)) {
        is_busy = push(l);
        for (int i = first_peer(l); i < end_peer(l); i++) {
            struct peer *p = &l->peers[i];
            p->silent_ns += past_ns < WAKING_NS ? past_ns : WAKING_NS;
            exchange_notes(l, i, now);
            p->is_missed = p->has_ended && l->rank == 0 && is_pending(p->head_in) && p->silent_ns > LIFE_NS;
        }
    }
    unlock(l);
    for (int i = first_peer(l); i < end_peer(l); i++)
        look_after(l, i);
    return is_busy;
}

static void *tender_main(void *arg)
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

static void wake_tender(struct link *l)
{
    const uint64_t one = 1;
    if (write(l->wake_fd, &one, sizeof one) < 0)
        assert(errno == EAGAIN);
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

err_code link_check(const struct link *l, struct err *e)
{
    return atomic_load(&l->is_lost) ? err_set(e, ERR_FAIL, "%s", l->lost_text) : ERR_OK;
}

static void rest(const struct link *l, int64_t begin_ns)
{
    int64_t ns = clock_ns() - begin_ns;
    if (ns < l->keep_ns)
        return;
    if (ns < SPIN_NS)
        sched_yield(); /* another process of this machine may be what is awaited */
    else
        clock_sleep_ns(REST_NS);
}

static err_code wait_sent(struct link *l, struct peer *p, MPI_Request *r, struct err *e)
{
    for (int64_t begin = clock_ns();; rest(l, begin)) {
        lock(l);
        bool done = is_done(p, r);
        unlock(l);
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

static int n_units(size_t n_bytes)
{
    assert(n_bytes % UNIT == 0 && n_bytes / UNIT <= INT32_MAX);
    return (int)(n_bytes / UNIT);
}

err_code link_room(struct link *l, int rank, size_t n_bytes, void **out, struct err *e)
{
    struct peer *p = &l->peers[rank];
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
    lock(l);
    p->out_bytes = n_bytes;
    p->n_sent++;
    check(p, MPI_Isend(p->room, n_units(n_bytes), MPI_INT32_T, rank, tag, l->comm, &p->out));
    bool is_busy = n_bytes >= LARGE_BYTES && is_pending(p->out);
    unlock(l);
    if (is_busy)
        wake_tender(l);
}

void link_send(struct link *l, int rank, size_t n_bytes)
{
    send_room(l, rank, TAG_REQUEST, n_bytes);
}

void link_expect(struct link *l, int rank, void *head, size_t head_bytes, void *body, size_t body_bytes)
{
    struct peer *p = &l->peers[rank];
    lock(l);
    p->body_bytes = body_bytes;
    check(p, MPI_Irecv(head, n_units(head_bytes), MPI_INT32_T, rank, TAG_HEAD, l->comm, &p->head_in));
    check(p, MPI_Irecv(body, n_units(body_bytes), MPI_INT32_T, rank, TAG_BODY, l->comm, &p->body_in));
    unlock(l);
    atomic_store(&p->is_awaited, true);
    if (body_bytes >= LARGE_BYTES)
        wake_tender(l);
}

/* Whether both messages of an answer are there; *body_bytes once the second one is. */
static bool has_answer(struct link *l, struct peer *p, size_t *body_bytes)
{
    int done = 1, n = 0;
    MPI_Status status;
    lock(l);
    if (p->body_in != MPI_REQUEST_NULL) {
        check(p, MPI_Test(&p->body_in, &done, &status));
        if (done && MPI_Get_count(&status, MPI_INT32_T, &n) == MPI_SUCCESS)
            *body_bytes = (size_t)n * UNIT;
    }
    done = done && is_done(p, &p->head_in) && !atomic_load(&p->has_failed);
    if (done)
        hear(p);
    unlock(l);
    return done;
}

void link_cancel(struct link *l, int rank)
{
    lock(l);
    l->peers[rank].owes_cancel = true;
    send_note(l, rank);
    unlock(l);
}

err_code link_wait(struct link *l, int rank, const struct cancel *c, size_t *body_bytes, struct err *e)
{
    struct peer *p = &l->peers[rank];
    int64_t begin = clock_ns(), asked = begin;
    bool is_cancelled = false;
    size_t n = 0;
    err_code code = ERR_OK;
    for (; code == ERR_OK && !has_answer(l, p, &n); rest(l, begin)) {
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
    lock(l);
    check(&l->peers[0], MPI_Improbe(0, TAG_REQUEST, l->comm, &there, &message, &status));
    if (there && MPI_Get_count(&status, MPI_INT32_T, &n) == MPI_SUCCESS) {
        unlock(l); /* growing may wait for memory */
        *n_bytes = (size_t)n * UNIT;
        *code = grow(&l->request, &l->request_capacity, *n_bytes, e);
        lock(l);
        if (*code == ERR_OK)
            check(&l->peers[0], MPI_Imrecv(l->request, n, MPI_INT32_T, &message, in));
    }
    unlock(l);
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
        rest(l, begin);
    }
    TRY(code);
    TRY(wait_sent(l, p, &in, e));
    atomic_store(&p->is_awaited, false);
    lock(l);
    hear(p);
    unlock(l);
    l->n_taken++;
    *request = l->request;
    return ERR_OK;
}

err_code link_answer(struct link *l, const void *head, size_t head_bytes, size_t n_bytes, struct err *e)
{
    struct peer *p = &l->peers[0];
    assert(head_bytes <= HEAD_ROOM);
    TRY(wait_sent(l, p, &l->head_out, e));
    memcpy(l->head, head, head_bytes);
    lock(l);
    check(p, MPI_Isend(l->head, n_units(head_bytes), MPI_INT32_T, 0, TAG_HEAD, l->comm, &l->head_out));
    unlock(l);
    send_room(l, 0, TAG_BODY, n_bytes);
    return ERR_OK;
}

bool link_is_cancelled(const struct link *l)
{
    return atomic_load(&l->n_cancelled) == l->n_taken || atomic_load(&l->has_goodbye);
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* What Open MPI is told unless the user has: messages between processes of a machine go through shared memory and not
 * through each other's memory, which the sandbox denies; and those of a layer of decode go at once. */
static void set_defaults(void)
{
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    setenv("OMPI_MCA_btl_vader_eager_limit", "65536", 0);
}

static void read_line(const char *path, char *out, size_t n)
{
    FILE *f = fopen(path, "re");
    if (f && !fgets(out, (int)n, f))
        out[0] = '\0';
    if (f)
        fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static void fill_card(struct link_card *c)
{
    struct stat st;
    c->protocol = LINK_PROTOCOL;
    c->process = (int32_t)getpid();
    if (gethostname(c->host, sizeof c->host - 1) != 0)
        snprintf(c->host, sizeof c->host, "unknown");
    read_line("/proc/sys/kernel/random/boot_id", c->machine, sizeof c->machine);
    c->processes = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

static int open_pidfd(const struct link_card *mine, const struct link_card *other)
{
    bool is_near = *mine->machine && mine->processes && !strcmp(mine->machine, other->machine) &&
                   mine->processes == other->processes;
    return is_near ? (int)syscall(SYS_pidfd_open, other->process, 0) : -1;
}

/* Everybody's card. Whoever dies here is what started the processes' to report. */
static err_code exchange_cards(struct link *l, const struct link_card *card, struct err *e)
{
    struct link_card *mine = &l->cards[l->rank];
    *mine = *card;
    fill_card(mine);
    _Static_assert(sizeof *mine % UNIT == 0, "cards are sent as units");
    const struct link_card copy = *mine;
    if (MPI_Allgather(&copy, n_units(sizeof copy), MPI_INT32_T, l->cards, n_units(sizeof copy), MPI_INT32_T, l->comm) !=
        MPI_SUCCESS)
        return err_set(e, ERR_FAIL, "the %d processes of this run could not greet each other (MPI_Allgather)",
                       l->n_rank);
    for (int i = 0; i < l->n_rank; i++) {
        struct peer *p = &l->peers[i];
        l->cards[i].host[LINK_HOST_BYTES - 1] = l->cards[i].text[ERR_TEXT_BYTES - 1] = '\0';
        snprintf(p->name, sizeof p->name, "rank %d (%s)", i, l->cards[i].host);
    }
    for (int i = first_peer(l); i < end_peer(l); i++) {
        l->peers[i].pidfd = open_pidfd(mine, &l->cards[i]);
        listen_to(l, i);
    }
    return ERR_OK;
}

static err_code start_tender(struct link *l, struct err *e)
{
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, NULL); /* for MPI's threads, too: the tender reads it */
    l->signal_fd = signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->signal_fd < 0 || l->wake_fd < 0)
        return err_set(e, ERR_FAIL, "watching the processes of this run: %s", strerror(errno));
    l->has_tender = pthread_create(&l->tender, NULL, tender_main, l) == 0;
    return l->has_tender ? ERR_OK : err_set(e, ERR_NOMEM, "a thread that tends to the ranks could not be made");
}

static bool has_processor_each(const struct link *l)
{
    int n = 0;
    for (int i = 0; i < l->n_rank; i++)
        n += !strcmp(l->cards[i].machine, l->cards[l->rank].machine);
    return n <= (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static err_code begin_mpi(struct link *l, struct err *e)
{
    int provided, is_begun = 0;
    set_defaults();
    MPI_Initialized(&is_begun);
    if (is_begun)
        return err_set(e, ERR_USAGE, "MPI has been begun already: expected that nobody has");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_SERIALIZED)
        return err_set(e, ERR_UNSUPPORTED,
                       "this MPI can't be called by several threads in turn "
                       "(MPI_THREAD_SERIALIZED)");
    MPI_Comm_dup(MPI_COMM_WORLD, &l->comm);
    MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(l->comm, &l->rank);
    MPI_Comm_size(l->comm, &l->n_rank);
    if (l->n_rank > LINK_MAX_RANK)
        return err_set(e, ERR_LIMIT, "%d processes: expected at most %d", l->n_rank, LINK_MAX_RANK);
    return ERR_OK;
}

/* The time of a message of n_bytes to a rank and back, the least of n_round. */
static err_code time_messages(struct link *l, int rank, size_t n_bytes, int n_round, void *back, int64_t *least_ns,
                              struct err *e)
{
    int32_t head;
    void *room;
    *least_ns = INT64_MAX;
    for (int i = 0; i < n_round; i++) {
        int64_t begin = clock_ns();
        TRY(link_room(l, rank, n_bytes, &room, e));
        *(int32_t *)room = 1;
        link_expect(l, rank, &head, sizeof head, back, n_bytes);
        link_send(l, rank, n_bytes);
        TRY(link_wait(l, rank, NULL, NULL, e));
        int64_t ns = clock_ns() - begin;
        *least_ns = ns < *least_ns ? ns : *least_ns;
    }
    return ERR_OK;
}

static err_code time_rank(struct link *l, int rank, void *back, struct err *e)
{
    int64_t large_ns;
    void *room;
    struct peer *p = &l->peers[rank];
    TRY(time_messages(l, rank, UNIT, N_SMALL, back, &p->round_trip_ns, e));
    TRY(time_messages(l, rank, PROBE_BYTES, N_LARGE, back, &large_ns, e));
    int64_t more_ns = large_ns - p->round_trip_ns;
    p->bytes_per_s = 2.0 * PROBE_BYTES * 1e9 / (double)(more_ns > 1000 ? more_ns : 1000);
    TRY(link_room(l, rank, UNIT, &room, e));
    *(int32_t *)room = 0;
    link_send(l, rank, UNIT);
    return ERR_OK;
}

/* What rank 0 times: sends each message back, up to the one that says that it was the last. */
static err_code echo(struct link *l, struct err *e)
{
    const void *request;
    size_t n;
    for (;;) {
        void *room;
        TRY(link_take(l, &request, &n, e));
        if (*(const int32_t *)request == 0)
            return ERR_OK;
        TRY(link_room(l, 0, n, &room, e));
        memcpy(room, request, n);
        TRY(link_answer(l, request, UNIT, n, e));
    }
}

/* Also opens whatever MPI opens when two processes first meet: later a sandbox may forbid it. */
static err_code time_links(struct link *l, struct err *e)
{
    if (l->rank)
        return echo(l, e);
    void *back = mem_alloc(PROBE_BYTES);
    if (!back)
        return err_nomem(e, PROBE_BYTES, "timing messages");
    err_code code = ERR_OK;
    for (int i = 1; i < l->n_rank && code == ERR_OK; i++)
        code = time_rank(l, i, back, e);
    mem_free(back);
    return code;
}

static err_code open_link(struct link *l, const struct link_card *card, struct err *e)
{
    TRY(start_tender(l, e));
    TRY(begin_mpi(l, e));
    l->cards = mem_calloc((size_t)l->n_rank, sizeof *l->cards);
    l->peers = mem_calloc((size_t)l->n_rank, sizeof *l->peers);
    if (!l->cards || !l->peers)
        return err_nomem(e, (size_t)l->n_rank * (sizeof *l->cards + sizeof *l->peers), "the ranks");
    l->head_out = MPI_REQUEST_NULL;
    for (int i = 0; i < l->n_rank; i++) {
        struct peer *p = &l->peers[i];
        p->out = p->head_in = p->body_in = p->note_out = p->note_in = MPI_REQUEST_NULL;
        p->pidfd = -1;
    }
    TRY(exchange_cards(l, card, e));
    l->keep_ns = has_processor_each(l) ? KEEP_NS : 0;
    atomic_store(&l->has_met, true);
    return time_links(l, e);
}

err_code link_open(struct link **out, const struct link_card *card, const struct link_params *params, struct err *e)
{
    struct link *l = *out = mem_calloc(1, sizeof *l);
    if (!l)
        return err_nomem(e, sizeof *l, "the link between ranks");
    l->params = *params;
    l->open_ns = clock_ns();
    l->wake_fd = l->signal_fd = -1;
    pthread_mutex_init(&l->mpi, NULL);
    err_code code = open_link(l, card, e);
    if (code != ERR_OK)
        link_close(out);
    return code;
}

/* ---- closing ------------------------------------------------------------------------------------------------- */

/* Goodbyes both ways; false when somebody's is missing. */
static bool say_goodbye(struct link *l)
{
    bool all = false;
    for (int64_t begin = clock_ns(); !all && (l->rank || clock_ns() - begin < CLOSE_NS); rest(l, begin)) {
        all = true;
        if (atomic_load(&l->is_lost))
            return false;
        lock(l);
        for (int i = first_peer(l); i < end_peer(l); i++) {
            struct peer *p = &l->peers[i];
            send_note(l, i);
            take_note(l, i);
            all &= p->has_ended && !p->owes_end && is_done(p, &p->note_out);
        }
        unlock(l);
    }
    return all;
}

/* Requests that nobody will answer. */
static void forget_requests(struct link *l)
{
    for (int i = first_peer(l); i < end_peer(l); i++) {
        MPI_Request *r[] = {&l->peers[i].head_in, &l->peers[i].body_in, &l->peers[i].note_in};
        for (size_t j = 0; j < sizeof r / sizeof *r; j++)
            if (*r[j] != MPI_REQUEST_NULL) {
                MPI_Cancel(r[j]);
                MPI_Request_free(r[j]);
            }
    }
}

static void end_mpi(struct link *l)
{
    atomic_store(&l->is_leaving, true);
    lock(l);
    for (int i = first_peer(l); i < end_peer(l); i++)
        l->peers[i].owes_end = true;
    atomic_store(&l->peers[first_peer(l)].is_awaited, l->rank > 0);
    unlock(l);
    bool all = say_goodbye(l);
    l->close_ns = clock_ns();
    atomic_store(&l->is_closing, true);
    lock(l);
    if (all) {
        forget_requests(l);
        MPI_Comm_free(&l->comm);
        MPI_Finalize();
    }
    unlock(l);
}

void link_close(struct link **link)
{
    struct link *l = *link;
    if (!l)
        return;
    if (atomic_load(&l->has_met) && !atomic_load(&l->is_lost))
        end_mpi(l);
    atomic_store(&l->is_stopped, true);
    if (l->has_tender) {
        wake_tender(l);
        pthread_join(l->tender, NULL);
    }
    for (int i = 0; i < l->n_rank && l->peers; i++) {
        struct peer *p = &l->peers[i];
        if (p->room)
            mem_unmap(p->room, p->room_bytes, MEM_SCRATCH);
        if (p->pidfd >= 0)
            close(p->pidfd);
    }
    if (l->request)
        mem_unmap(l->request, l->request_capacity, MEM_SCRATCH);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    pthread_mutex_destroy(&l->mpi);
    mem_free(l->cards);
    mem_free(l->peers);
    mem_free(l);
    *link = NULL;
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
