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
    uint64_t input, output; /* weights that belong to no layer: on the first device, and on the last */
};

struct stage_device {
    uint64_t room_bytes; /* for weights, in memory of its own; UINT64_MAX: the device works in the host's memory */
    double speed; /* of products; 0: not known. Devices with memory of their own are compared with each other, and so
                     are those in the host's memory: the two units differ */
    double share; /* of the layers, if the user named shares; all 0: memory and speed decide */
};

/* What layers [first, end) take, with input and output if the range begins or ends with those. */
struct gpu_need stage_need(const struct stage_facts *f, int64_t first, int64_t end);

/* Chooses where the stages end: end [n_device], of which the last is n_layer. Each device gets at least one layer. With
 * shares, the numbers of layers come as near to them as possible. Without, devices with memory of their own are filled,
 * much faster ones first and equally fast ones in proportion to their room; devices in the host's memory get what
 * remains, in proportion to their speeds. ERR_USAGE when the layers can't be divided among so many devices. */
MUST_USE err_code stage_choose(const struct stage_facts *f, const struct stage_device *devices, int n_device,
                               int64_t *end, struct err *e);

#endif
