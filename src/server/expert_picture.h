/* Snapshots of a model's experts for the web page: which experts the routers chose, where each is, and some figures.
 * The thread that drives the model makes one a few times a second while somebody watches. Each becomes server-sent
 * events with JSON data (docs/server.md describes the fields):
 *
 *   event: model    says which model was loaded, its places and MoE layers
 *   event: experts  has figures, choices since the previous picture, and where experts are
 *
 * Thread-safety: expert_picture_tell may be called by any thread; begin, step and end by the driving thread alone. */
#ifndef SERVER_EXPERT_PICTURE_H
#define SERVER_EXPERT_PICTURE_H

#include "base/bytes.h"
#include "moebius/moebius.h"
#include "texts/texts.h"

struct expert_picture;

/* Opens the picture of a model that is not loaded yet. */
MUST_USE err_code expert_picture_open(struct expert_picture **out, struct err *e);
void expert_picture_close(struct expert_picture **p);

/* The model is loaded; `name` is borrowed during the call. */
MUST_USE err_code expert_picture_begin(struct expert_picture *p, moebius_engine *engine, const char *name,
                                       struct err *e);
/* Called between two passes: makes a new picture if it is wanted and due. is_last: no other pass follows at once. */
void expert_picture_step(struct expert_picture *p, moebius_engine *engine, const struct texts_stats *stats,
                         bool is_wanted, bool is_last);
/* The model is unloaded. */
void expert_picture_end(struct expert_picture *p);

/* What one viewer has seen; zero at first. */
struct expert_sight {
    const struct expert_picture *picture; /* the last one */
    uint64_t n_load, n_made;              /* how many loads and, since the last, pictures there had been */
};

/* Adds the events that this viewer has not seen, if there are any, to *out. */
MUST_USE err_code expert_picture_tell(struct expert_picture *p, struct expert_sight *sight, struct bytes *out,
                                      struct err *e);

#endif
