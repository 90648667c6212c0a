/* The concentration gate: whether a device's slots for single experts pay, or whole layers' experts there do better.
 *
 * What a text chose says how even it is (skew), and how many of its choices slots find that go after what is hot: the
 * miss-ratio curve of the policy in use. The first says little: a text may use all experts alike and yet choose again
 * what it chose before. So the second decides, with what links and devices cost: slots find more than whole layers do,
 * but their layers wait for two devices. Pure, thread-safe. */
#ifndef PLANNER_GATE_H
#define PLANNER_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "planner/machine.h"

enum { GATE_MAX_POINT = 32, GATE_MAX_COUNT = 16, GATE_POLICY_BYTES = 8, GATE_REASON_BYTES = 240 };

/* With slots for a share of the experts: */
struct gate_point {
    double share;
    double hit;       /* of choices, found in slots of a device beside another that has all experts: 0 to 1 */
    double moved;     /* experts that a token brings there, in the mean */
    double slots_hit; /* of choices, found where what misses is read into slots at once: 0 to 1 */
};

/* Of n tokens together: how many experts of a layer they choose, over how many even and independent choices would. */
struct gate_count {
    int64_t n;
    double apart;  /* tokens far from each other, as those of several texts */
    double in_row; /* tokens that follow each other, as those of a prompt */
};

/* What a text showed of a model. */
struct gate_curve {
    uint64_t fingerprint; /* the model's */
    char policy[GATE_POLICY_BYTES];
    int64_t n_tok, n_layer;                   /* of the text; with experts */
    int64_t n_used;                           /* experts of a token in a layer, in the mean */
    double expert_bytes;                      /* of one, in the mean */
    double share_of_90;                       /* of a layer's experts, those that 90% of its choices fall on */
    double entropy;                           /* of a layer's choices, over that of an even use */
    struct gate_point points[GATE_MAX_POINT]; /* [n_point], shares ascending */
    int n_point;
    struct gate_count counts[GATE_MAX_COUNT]; /* [n_count], n ascending; none: of a text too short */
    int n_count;
};

/* Seconds; 0: not known. */
struct gate_costs {
    double first_s, other_s; /* to compute an expert on the device with the slots, and on the one that has all */
    double wait_s;           /* for a layer that both compute: its choice is read back, and a result waited for */
    double move_s;           /* to bring an expert into a slot */
};

struct gate {
    bool passes;              /* slots for experts; else whole layers */
    double share, hit, moved; /* with slots, read off the curve */
    double layer_share;       /* of choices, those in the layers that fit whole */
    double slots_s, layers_s; /* a token's time in its experts; 0: not known */
    char reason[GATE_REASON_BYTES];
};

/* How the experts of expert_bytes cost on a machine's first GPU beside its processor, or on two groups of its threads
 * (n_first_thread 0: the GPU). */
struct gate_costs gate_costs(const struct machine *m, double expert_bytes, int n_first_thread, int n_other_thread);

/* Hits and moves between two points in proportion; below the first one in proportion to it. */
void gate_read_off(const struct gate_curve *c, double share, double *hit, double *moved);
/* The same of what is found where misses are read into slots at once. */
double gate_slots_hit(const struct gate_curve *c, double share);
/* What of even choices n tokens make, between two counts in proportion; beyond the last one as that. */
double gate_distinct(const struct gate_curve *c, double n, bool in_row);
/* Decides for slots, or layers, that take a share of all experts' memory. */
void gate_decide(struct gate *out, const struct gate_curve *c, double share, const struct gate_costs *costs);

/* For programs: the decision with the curve. NUL-terminated, owned by the caller (mem_free). */
MUST_USE err_code gate_json(const struct gate *g, const struct gate_curve *c, char **text, struct err *e);

/* A curve as JSON, NUL-terminated, owned by the caller (mem_free); and back: n bytes of text, `name` for messages.
 * Refused, with the key: other versions, missing keys, values of other types or out of range, shares and counts that
 * don't ascend. */
MUST_USE err_code gate_write(const struct gate_curve *c, char **text, struct err *e);
MUST_USE err_code gate_parse(struct gate_curve *c, const char *text, size_t n, const char *name, struct err *e);

#endif
