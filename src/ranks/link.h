/* Messages between the processes (ranks) of one run, over MPI: requests from rank 0 to the others, answers to it.
 *
 * One thread of each process, the one that computes, sends, receives and waits. Beside it a thread of the link's own
 * tends to it: it sends a sign of life each second and hears the others', moves large messages on while the other
 * thread computes, and watches the processes. A process that has died, or that another one waits for and has not heard
 * of for LINK_SILENCE_NS of its own waking time, is lost: the run can't go on, every wait fails with the same sentence,
 * and whoever opened the link is told at once, so that nobody need ever be waiting. So is one that rank 0 waits for and
 * that lives, but whose computing thread has not taken a step for as long as its answer may take without (link_watch).
 *
 * Waits spin for a tenth of a second after the last message and then look each millisecond.
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

/* What each process tells all others when the link is opened: the same in all builds that speak the same protocol. */
struct link_card {
    uint32_t protocol;          /* LINK_PROTOCOL */
    char version[32];           /* of the program */
    char processor[16];         /* x86_64 or the like */
    uint32_t levels;            /* bit i: it has, and may use, the cpu_level i */
    char host[LINK_HOST_BYTES]; /* the machine's name */
    char machine[40];           /* tells machines apart: the kernel's number for its start */
    uint64_t processes;         /* tells apart the numberings of processes (namespaces) on a machine */
    int32_t process;            /* its number there */
    int32_t code;               /* an err_code: it can't take part, for the reason in text */
    char text[ERR_TEXT_BYTES];
};
enum { LINK_PROTOCOL = 3 };

struct link_params {
    /* Told once, by any thread, when a rank is lost or the run was ended from outside; need not return. May be NULL. */
    void (*lost)(void *user, const char *sentence);
    void *user;
};

/* Joins the others, and times the way to rank 0. `card` lacks what the link itself knows: host, machine, processes and
 * process. */
MUST_USE err_code link_open(struct link **out, const struct link_card *card, const struct link_params *params,
                            struct err *e);
/* Says goodbye and waits for the others to do so; accepts NULL. After a loss it leaves all to the end of the process.
 */
void link_close(struct link **l);

int link_rank(const struct link *l);   /* this process */
int link_n_rank(const struct link *l); /* 2 or more */
const struct link_card *link_card(const struct link *l, int rank);
const char *link_name(const struct link *l, int rank);      /* "rank 2 (host)" */
int64_t link_round_trip_ns(const struct link *l, int rank); /* on rank 0: of a message of a few bytes, there and back */
double link_bytes_per_s(const struct link *l, int rank);    /* on rank 0: of large messages */

/* Room for the next message to a rank, once the one before has gone: all but link_expect's is owned by the link. */
MUST_USE err_code link_room(struct link *l, int rank, size_t n_bytes, void **out, struct err *e);
/* Sends the first n_bytes of that room, a multiple of 4, and returns at once. */
void link_send(struct link *l, int rank, size_t n_bytes);

/* Where the next answer of a rank is to go, in two messages: exactly head_bytes, and at most body_bytes (0: none
 * comes). Both multiples of 4, borrowed until link_wait. Until then its computing thread may stand still for
 * patience_ns. */
void link_expect(struct link *l, int rank, void *head, size_t head_bytes, void *body, size_t body_bytes,
                 int64_t patience_ns);
/* Waits until the answer is there; *body_bytes (may be NULL): of the second message. A cancel that is wanted meanwhile
 * is passed on to the rank, and the answer still awaited. `c` may be NULL. */
MUST_USE err_code link_wait(struct link *l, int rank, const struct cancel *c, size_t *body_bytes, struct err *e);

/* Says that nobody wants the answer that is awaited. */
void link_cancel(struct link *l, int rank);

/* On other ranks: waits for a request, which is the link's until the next call. ERR_CANCELLED: rank 0 has ended. */
MUST_USE err_code link_take(struct link *l, const void **request, size_t *n_bytes, struct err *e);
/* The answer to it: a head that is copied, and the first n_bytes of the room. */
MUST_USE err_code link_answer(struct link *l, const void *head, size_t head_bytes, size_t n_bytes, struct err *e);
bool link_is_cancelled(const struct link *l); /* rank 0 no longer wants the answer to this request, or has ended */

/* On other ranks. The thread that computes has taken a step; it does so many times a second, or once rank 0 has been
 * patient for long. Any thread. */
void link_step(struct link *l);
/* From now on it must, but while is_excused(user), which is asked by the link's own thread; NULL: it need not, as at
 * first. When it returns the former function is not asked any more. */
void link_watch(struct link *l, bool (*is_excused)(void *user), void *user);

/* ERR_FAIL when a rank is lost. */
MUST_USE err_code link_check(const struct link *l, struct err *e);

#endif
