/* Messages between the processes (ranks) of one run, over MPI: requests from rank 0 to the others, answers to it.
 *
 * One thread of each process, the one that computes, sends, receives and waits. The link has a thread of its own beside
 * it, the tender: it sends a heartbeat each second and receives the others', moves large messages on while the other
 * thread computes, and watches the processes. A process is lost if it has died, or if another one waits for it and has
 * not heard of it for LINK_SILENCE_NS (not counting time in which the waiting process itself was suspended), or if rank
 * 0 waits for it and its heartbeats come, but its computing thread makes no progress for longer than it may
 * (link_watch). The run then can't go on: every wait fails with the same sentence, and whoever opened the link is told
 * at once.
 *
 * Waits spin for a tenth of a second after the last message, and then look every millisecond.
 *
 * Thread-safety: link_room to link_wait, and link_watch, by one thread; link_check, link_is_cancelled and link_step by
 * any. */
#ifndef RANKS_LINK_H
#define RANKS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"

struct link;

enum { LINK_MAX_RANK = 64, LINK_HOST_BYTES = 64 };
static const int64_t LINK_SILENCE_NS = (int64_t)7 * 1000 * 1000 * 1000;

/* What each process tells all others when the link is opened. Its form is the same in all builds with the same
 * protocol.
 */
struct link_card {
    uint32_t protocol;          /* LINK_PROTOCOL */
    char version[32];           /* of the program */
    char processor[16];         /* x86_64 or the like */
    uint32_t levels;            /* bit i: it has, and may use, the cpu_level i */
    char host[LINK_HOST_BYTES]; /* the machine's name */
    char machine[40];           /* tells machines apart: the kernel's boot_id */
    uint64_t processes;         /* tells a machine's PID namespaces apart */
    int32_t process;            /* its PID in its namespace */
    int32_t code;               /* an err_code; if it is not ERR_OK, the process can't take part because of `text` */
    char text[ERR_TEXT_BYTES];
};
enum { LINK_PROTOCOL = 3 };

struct link_params {
    /* Called once, by any thread, when a rank is lost or the run is ended from outside (SIGTERM); it need not return.
     * May be NULL. */
    void (*lost)(void *user, const char *sentence);
    void *user;
};

/* Connects to the other processes, and times the connections to rank 0. The link itself fills in the card's host,
 * machine, processes and process. */
MUST_USE err_code link_open(struct link **out, const struct link_card *card, const struct link_params *params,
                            struct err *e);
/* Disconnects, and waits until the others do so, too; accepts NULL. After a loss it leaves MPI to the end of the
 * process. */
void link_close(struct link **l);

int link_rank(const struct link *l);   /* this process */
int link_n_rank(const struct link *l); /* 2 or more */
const struct link_card *link_card(const struct link *l, int rank);
const char *link_name(const struct link *l, int rank);      /* "rank 2 (host)" */
int64_t link_round_trip_ns(const struct link *l, int rank); /* on rank 0: of a message of a few bytes, there and back */
double link_bytes_per_s(const struct link *l, int rank);    /* on rank 0: of large messages */

/* Waits until the last message to a rank has been sent, and gives a buffer of n_bytes for the next one. The link owns
 * it. */
MUST_USE err_code link_room(struct link *l, int rank, size_t n_bytes, void **out, struct err *e);
/* Sends the first n_bytes (a multiple of 4) of that buffer, and returns at once. */
void link_send(struct link *l, int rank, size_t n_bytes);

/* Says where the next answer of a rank is to go. An answer is two messages: a head of exactly head_bytes, and a body of
 * at most body_bytes (0: empty); both are multiples of 4. The buffers are borrowed until link_wait. Until then the
 * rank's computing thread may make no progress for at most patience_ns. */
void link_expect(struct link *l, int rank, void *head, size_t head_bytes, void *body, size_t body_bytes,
                 int64_t patience_ns);
/* Waits for the answer; *body_bytes (may be NULL): the length of its body. When `c` (may be NULL) asks to cancel
 * meanwhile, the rank is told, and its answer is still awaited. */
MUST_USE err_code link_wait(struct link *l, int rank, const struct cancel *c, size_t *body_bytes, struct err *e);

/* Says that nobody wants the answer that is awaited. */
void link_cancel(struct link *l, int rank);

/* On other ranks: waits for a request, which the link owns and keeps until the next call. ERR_CANCELLED: rank 0 has
 * ended. */
MUST_USE err_code link_take(struct link *l, const void **request, size_t *n_bytes, struct err *e);
/* Answers it: with a head, which is copied, and with the first n_bytes of link_room as the body. */
MUST_USE err_code link_answer(struct link *l, const void *head, size_t head_bytes, size_t n_bytes, struct err *e);
bool link_is_cancelled(const struct link *l); /* rank 0 no longer wants the answer to this request, or has ended */

/* On other ranks, by any thread: notes that the computing thread makes progress. To be called more often than rank 0's
 * patience_ns. */
void link_step(struct link *l);
/* From now on the computing thread must make progress, except while is_excused(user) is true; the tender calls that.
 * NULL: it need not, as at first. When this returns, the former function is no longer called. */
void link_watch(struct link *l, bool (*is_excused)(void *user), void *user);

/* ERR_FAIL when a rank is lost. */
MUST_USE err_code link_check(const struct link *l, struct err *e);

#endif
