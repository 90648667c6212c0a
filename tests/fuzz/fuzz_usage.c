/* Any bytes as a file of usage counts and as a tuning. */
#include "fuzz.h"

#include <assert.h>

#include "engine/tuning.h"
#include "experts/usage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct usage u;
    struct err e;
    if (usage_parse(&u, text, size, "fuzz", 0, 0, 0, &e) == ERR_OK) {
        usage_merge(&u, &u);
        assert(usage_rate(&u, u.n_layer - 1, (int32_t)u.n_expert - 1, 1) <= 1);
        usage_close(&u);
    }
    struct tuning tuning = {0};
    if (tuning_parse(&tuning, text, size, "fuzz", &e) == ERR_OK) {
        int64_t cutoff = tuning_cutoff(&tuning, 0);
        assert(cutoff >= 1 && cutoff <= TUNING_MAX_CUTOFF && tuning.cpu.several.ahead_bytes <= CPU_TUNING_MAX_AHEAD);
    }
    return 0;
}
