/* What the link's two threads share: link.c has the messages, link_open.c the beginning and the end, link_tender.c the
 * thread that looks after the others. */
#ifndef RANKS_LINK_INTERNAL_H
#define RANKS_LINK_INTERNAL_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ranks/link.h"

#define LINK_MS ((int64_t)1000000)

enum { TAG_REQUEST = 1, TAG_HEAD, TAG_BODY, TAG_NOTE };
enum { LINK_UNIT = sizeof(int32_t) }; /* what MPI counts */
enum { LINK_LARGE_BYTES = 64 << 10 }; /* such messages need the tender */
enum { LINK_HEAD_ROOM = 4096 };       /* of an answer */

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
    int32_t note_sent[2], note_got[2]; /* a kind; of NOTE_CANCEL the number of a request, of NOTE_LIFE n_step */
    bool is_missed;                    /* it disconnected without the answer that is awaited; only the tender uses it */
    bool owes_life, owes_cancel, owes_end; /* notes that are still to be sent to it: see NOTE_LIFE and so on */
    int64_t life_ns;                       /* when a heartbeat was last sent to it */
    atomic_llong n_heard;                  /* messages and notes that came from it */
    atomic_llong silent_ns;                /* time since the last one, in which this process ran */
    atomic_bool is_awaited;                /* this process can't go on without it */
    int32_t n_step;                        /* on rank 0: its n_step in its last heartbeat */
    atomic_llong idle_ns;     /* on rank 0: time since that changed, in which this process ran and awaited it */
    atomic_llong patience_ns; /* on rank 0: when idle_ns exceeds this, the process is lost */
    atomic_bool has_failed;   /* a call of MPI about it has failed */
    atomic_bool has_ended;    /* it has disconnected */
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
    int64_t open_ns;         /* when this process began to connect */
    atomic_bool has_met;     /* it is connected: from then on the peers are there */
    int wake_fd, signal_fd;  /* an eventfd that wakes the tender; a signalfd for SIGTERM */
    int64_t keep_ns;         /* for so long a wait spins without giving up its processor */
    atomic_bool is_stopped;  /* the tender is to end */
    atomic_bool is_leaving;  /* the link is disconnecting, so that rank 0 doesn't take a process that ends for lost */
    atomic_bool is_closing;  /* all have disconnected: nobody is awaited any more */
    atomic_bool has_goodbye; /* rank 0 has disconnected */
    atomic_bool is_lost;
    char lost_text[ERR_TEXT_BYTES]; /* why; written before is_lost is set */
    int64_t close_ns;               /* when closing began */

    /* other ranks */
    void *request; /* [request_capacity] */
    size_t request_capacity;
    uint32_t n_taken;               /* requests so far */
    atomic_uint n_cancelled;        /* the number of the one that rank 0 cancelled last */
    atomic_int n_step;              /* grows while the thread that computes goes on, or need not */
    bool (*is_excused)(void *user); /* guarded by the mutex; NULL: it need not */
    void *excused_user;
    MPI_Request head_out; /* of the answer */
    unsigned char head[LINK_HEAD_ROOM];
};

/* The others that this process talks to: rank 0 to all, all to rank 0. */
int link_first_peer(const struct link *l);
int link_end_peer(const struct link *l);

/* Held around each call of MPI, and of the functions up to the next comment. */
void link_lock(struct link *l);
void link_unlock(struct link *l);
/* Whether a request is done. Where MPI fails, its rank has failed. */
bool link_is_done(struct peer *p, MPI_Request *r);
bool link_is_pending(MPI_Request r);               /* the same without taking notice */
void link_note_code(struct peer *p, int mpi_code); /* of another call that is about a rank */
void link_hear(struct peer *p);                    /* something has come from it */
/* Begins to hear a rank's notes; sends what is owed to it, one at a time; takes what has come. */
void link_listen(struct link *l, int rank);
void link_send_note(struct link *l, int rank);
void link_take_note(struct link *l, int rank);

/* Between two looks of a wait that has begun then. */
void link_rest(struct link *l, int64_t begin_ns);
int link_n_units(size_t n_bytes);

/* The tender's thread, and how to have it look at once. */
void *link_tender_main(void *link);
void link_wake_tender(struct link *l);

#endif
