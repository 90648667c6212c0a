/* How a model's layers are divided among devices that compute them one after the other (stages): pure arithmetic over
 * what layers take and devices have. */
#ifndef ENGINE_STAGE_CHOICE_H
#define ENGINE_STAGE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/gpu_choice.h"

/* What a layer takes, in bytes. */
struct stage_layer {
    uint64_t weights;       /* all but the routed experts */
    uint64_t experts;       /* all routed experts */
    uint64_t least_experts; /* those of one token */
    bool may_end;           /* a stage may end here: no later layer uses a cache of this one or an earlier one */
};

struct stage_facts {
    const struct stage_layer *layers; /* [n_layer] */
    int64_t n_layer;
    uint64_t input, output; /* weights beside the layers, on the first device and on the last one */
};

struct stage_device {
    uint64_t room_bytes; /* for weights, in memory of its own; UINT64_MAX: it works in the host's */
    double speed; /* of products; 0: not known. Figures of devices in the host's memory compare among themselves */
    double share; /* of the layers, as it was asked for; all 0: memory and speed decide */
};

/* What layers [first, end) take, with what lies beside them. */
struct gpu_need stage_need(const struct stage_facts *f, int64_t first, int64_t end);

/* Chooses where the stages end: end [n_device], the last one being n_layer. Each device gets one layer at least. With
 * shares the numbers of layers come as near to them as they can. Else devices with memory of their own are filled
 * alike, those first that are much faster than others; devices in the host's memory get what remains, in proportion to
 * their speeds. ERR_USAGE where the layers can't be divided among so many. */
MUST_USE err_code stage_choose(const struct stage_facts *f, const struct stage_device *devices, int n_device,
                               int64_t *end, struct err *e);

#endif
