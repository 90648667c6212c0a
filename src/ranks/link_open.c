#define _GNU_SOURCE
#include "ranks/link_internal.h"

#include <errno.h>
#include <signal.h>
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

enum { N_SMALL = 16, N_LARGE = 3, PROBE_BYTES = 256 << 10 }; /* how often, and with what, a link is timed */

static const int64_t KEEP_NS = LINK_MS / 5;     /* of waits: what a layer of decode may take */
static const int64_t CLOSE_NS = 4000 * LINK_MS; /* for all goodbyes, and for MPI's own end */

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

/* What has come by wire ends where its room does. */
static void end_texts(struct link_card *c)
{
    c->version[sizeof c->version - 1] = c->processor[sizeof c->processor - 1] = '\0';
    c->host[sizeof c->host - 1] = c->machine[sizeof c->machine - 1] = c->text[sizeof c->text - 1] = '\0';
}

/* Everybody's card. Whoever dies here is what started the processes' to report. */
static err_code exchange_cards(struct link *l, const struct link_card *card, struct err *e)
{
    struct link_card *mine = &l->cards[l->rank];
    *mine = *card;
    fill_card(mine);
    _Static_assert(sizeof *mine % LINK_UNIT == 0, "cards are sent as units");
    const struct link_card copy = *mine;
    if (MPI_Allgather(&copy, link_n_units(sizeof copy), MPI_INT32_T, l->cards, link_n_units(sizeof copy), MPI_INT32_T,
                      l->comm) != MPI_SUCCESS)
        return err_set(e, ERR_FAIL, "the %d processes of this run could not greet each other (MPI_Allgather)",
                       l->n_rank);
    for (int i = 0; i < l->n_rank; i++) {
        struct peer *p = &l->peers[i];
        end_texts(&l->cards[i]);
        snprintf(p->name, sizeof p->name, "rank %d (%s)", i, l->cards[i].host);
    }
    for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
        l->peers[i].pidfd = open_pidfd(mine, &l->cards[i]);
        link_listen(l, i);
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
    l->has_tender = pthread_create(&l->tender, NULL, link_tender_main, l) == 0;
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
    if (l->n_rank < 2)
        return err_set(
            e, ERR_USAGE,
            "the environment is that of a run of several processes (OMPI_COMM_WORLD_SIZE, PMI_SIZE), but MPI "
            "knows of one: expected that mpirun starts this program");
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
        link_expect(l, rank, &head, sizeof head, back, n_bytes, LINK_SILENCE_NS);
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
    TRY(time_messages(l, rank, LINK_UNIT, N_SMALL, back, &p->round_trip_ns, e));
    TRY(time_messages(l, rank, PROBE_BYTES, N_LARGE, back, &large_ns, e));
    int64_t more_ns = large_ns - p->round_trip_ns;
    p->bytes_per_s = 2.0 * PROBE_BYTES * 1e9 / (double)(more_ns > 1000 ? more_ns : 1000);
    TRY(link_room(l, rank, LINK_UNIT, &room, e));
    *(int32_t *)room = 0;
    link_send(l, rank, LINK_UNIT);
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
        if (n < LINK_UNIT || n > PROBE_BYTES)
            return err_set(e, ERR_FAIL, "a message of rank 0 that times the link: %zu bytes: expected %d to %d", n,
                           (int)LINK_UNIT, (int)PROBE_BYTES);
        if (*(const int32_t *)request == 0)
            return ERR_OK;
        TRY(link_room(l, 0, n, &room, e));
        memcpy(room, request, n);
        TRY(link_answer(l, request, LINK_UNIT, n, e));
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
        atomic_store(&p->patience_ns, LINK_SILENCE_NS);
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
    for (int64_t begin = clock_ns(); !all && (l->rank || clock_ns() - begin < CLOSE_NS); link_rest(l, begin)) {
        all = true;
        if (atomic_load(&l->is_lost))
            return false;
        link_lock(l);
        for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
            struct peer *p = &l->peers[i];
            link_send_note(l, i);
            link_take_note(l, i);
            all &= p->has_ended && !p->owes_end && link_is_done(p, &p->note_out);
        }
        link_unlock(l);
    }
    return all;
}

/* Requests that nobody will answer. */
static void forget_requests(struct link *l)
{
    for (int i = link_first_peer(l); i < link_end_peer(l); i++) {
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
    link_lock(l);
    for (int i = link_first_peer(l); i < link_end_peer(l); i++)
        l->peers[i].owes_end = true;
    atomic_store(&l->peers[link_first_peer(l)].is_awaited, l->rank > 0);
    link_unlock(l);
    bool all = say_goodbye(l);
    l->close_ns = clock_ns();
    atomic_store(&l->is_closing, true);
    link_lock(l);
    if (all) {
        forget_requests(l);
        MPI_Comm_free(&l->comm);
        MPI_Finalize();
    }
    link_unlock(l);
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
        link_wake_tender(l);
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
