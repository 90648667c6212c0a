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
    struct tuning tuning = {.machine = "a"};
    if (tuning_parse(&tuning, text, size, "fuzz", &e) == ERR_OK)
        assert(tuning.sort_cutoff >= 1 && tuning.sort_cutoff <= TUNING_MAX_CUTOFF);
    return 0;
}
