/* The concentration gate: whether a device's slots for single experts pay, or whole layers' experts there do better.
 *
 * The routing of a sample text shows how evenly it uses the experts (skew), and what share of its choices hits slots
 * that a caching policy fills (the policy's miss-ratio curve). Skew alone says little: a text may use all experts
 * equally often and still choose the same ones again soon. So the gate decides by the curve and by the costs of links
 * and devices: slots hit more often than whole layers do, but each of their layers waits for two devices. Pure,
 * thread-safe. */
#ifndef PLANNER_GATE_H
#define PLANNER_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "planner/machine.h"

enum { GATE_MAX_POINT = 32, GATE_MAX_COUNT = 16, GATE_POLICY_BYTES = 8, GATE_REASON_BYTES = 240 };

/* A point of the curve. */
struct gate_point {
    double share;     /* share of the experts that have slots */
    double hit;       /* share of choices that hit slots of a device beside one that has all experts: 0 to 1 */
    double moved;     /* experts moved into those slots per token, on average */
    double slots_hit; /* share of choices that hit where each miss is read into a slot at once: 0 to 1 */
};

/* How many different experts of a layer n tokens choose together, divided by how many they would choose if choices were
 * even and independent. */
struct gate_count {
    int64_t n;
    double apart;  /* tokens far from each other, as those of several texts */
    double in_row; /* tokens that follow each other, as those of a prompt */
};

/* What the routing of a sample text showed about a model. */
struct gate_curve {
    uint64_t fingerprint; /* the model's */
    char policy[GATE_POLICY_BYTES];
    int64_t n_tok;                            /* tokens of the text */
    int64_t n_layer;                          /* layers with experts */
    int64_t n_used;                           /* experts that a token uses in a layer, on average */
    double expert_bytes;                      /* bytes of one expert, on average */
    double share_of_90;                       /* share of a layer's experts that 90% of its choices fall on */
    double entropy;                           /* entropy of a layer's choices, divided by that of even use */
    struct gate_point points[GATE_MAX_POINT]; /* [n_point], shares ascending */
    int n_point;
    struct gate_count counts[GATE_MAX_COUNT]; /* [n_count], n ascending; none if the text was too short */
    int n_count;
};

/* Seconds; 0: not known. */
struct gate_costs {
    double first_s, other_s; /* computing an expert on the device with slots, and on the one that has all experts */
    double wait_s;           /* waiting in a layer that both compute: for the choice and for a result */
    double move_s;           /* moving an expert into a slot */
};

struct gate {
    bool passes;              /* slots for single experts are better; false: whole layers are */
    double share, hit, moved; /* with slots, read off the curve */
    double layer_share;       /* share of choices in the layers that fit whole */
    double slots_s, layers_s; /* a token's time in its experts; 0: not known */
    char reason[GATE_REASON_BYTES];
};

/* The costs of experts of expert_bytes on a machine's first GPU beside n_other_thread threads of its processor
 * (n_first_thread 0), or on two groups of its threads. */
struct gate_costs gate_costs(const struct machine *m, double expert_bytes, int n_first_thread, int n_other_thread);

/* Hits and moves at a share, interpolated linearly between two points, or between 0 and the first one. */
void gate_read_off(const struct gate_curve *c, double share, double *hit, double *moved);
/* slots_hit at a share, interpolated in the same way. */
double gate_slots_hit(const struct gate_curve *c, double share);
/* The ratio of struct gate_count for n tokens, interpolated linearly between two counts; beyond the last one constant.
 */
double gate_distinct(const struct gate_curve *c, double n, bool in_row);
/* Decides between slots and whole layers that take this share of all experts' memory. */
void gate_decide(struct gate *out, const struct gate_curve *c, double share, const struct gate_costs *costs);

/* The decision with the curve, as JSON. NUL-terminated, owned by the caller (mem_free). */
MUST_USE err_code gate_json(const struct gate *g, const struct gate_curve *c, char **text, struct err *e);

/* Writes a curve as JSON, NUL-terminated, owned by the caller (mem_free); and parses n bytes of it, `name` for
 * messages. Errors name the key: other versions, missing keys, values of other types or out of range, shares and counts
 * that don't ascend. */
MUST_USE err_code gate_write(const struct gate_curve *c, char **text, struct err *e);
MUST_USE err_code gate_parse(struct gate_curve *c, const char *text, size_t n, const char *name, struct err *e);

#endif
