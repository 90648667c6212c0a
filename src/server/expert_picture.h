/* What a model's experts do, as a page shows it: which the routers chose, where each is, and the figures beside that.
 * Made a few times a second while somebody looks, by the thread that drives the model, as events whose data is JSON
 * (docs/server.md has the fields):
 *
 *   event: model    says which model was loaded, its places and MoE layers
 *   event: experts  has figures, choices since the picture before, and where experts are
 *
 * Thread-safety: expert_picture_tell may be called by any thread; begin, step and end by the one that drives. */
#ifndef SERVER_EXPERT_PICTURE_H
#define SERVER_EXPERT_PICTURE_H

#include "base/bytes.h"
#include "moebius/moebius.h"
#include "texts/texts.h"

struct expert_picture;

/* Of a model that is not loaded. */
MUST_USE err_code expert_picture_open(struct expert_picture **out, struct err *e);
void expert_picture_close(struct expert_picture **p);

/* The model is loaded; `name` is borrowed during the call. */
MUST_USE err_code expert_picture_begin(struct expert_picture *p, moebius_engine *engine, const char *name,
                                       struct err *e);
/* Between two passes: makes a new picture if it is wanted and time for one. is_last: no pass follows at once. */
void expert_picture_step(struct expert_picture *p, moebius_engine *engine, const struct texts_stats *stats,
                         bool is_wanted, bool is_last);
/* The model is unloaded. */
void expert_picture_end(struct expert_picture *p);

/* What somebody has seen; zero at first. */
struct expert_sight {
    const struct expert_picture *picture; /* the last one */
    uint64_t n_load, n_made;              /* which of its models, and which of that one's pictures */
};

/* Adds the events that somebody has not seen; nothing where there is nothing new. */
MUST_USE err_code expert_picture_tell(struct expert_picture *p, struct expert_sight *sight, struct bytes *out,
                                      struct err *e);

#endif
