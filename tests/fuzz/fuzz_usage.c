/* Any bytes as a file of usage counts, as a tuning, and as a trace, which is then replayed. */
#include "fuzz.h"

#include <assert.h>

#include "engine/tuning.h"
#include "experts/trace.h"
#include "experts/usage.h"

static void replay(const struct trace *t)
{
    struct err e;
    for (int k = 0; k < POLICY_N_KIND; k++) {
        struct replay r, best;
        if (trace_replay(t, (enum policy_kind)k, 0.5, &r, &e) != ERR_OK ||
            trace_replay_best(t, 0.5, &best, &e) != ERR_OK)
            return;
        assert(r.n_hit <= best.n_hit && best.n_hit <= best.n_all);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct usage u;
    struct trace t;
    struct err e;
    uint64_t fingerprint;
    if (size > 1 << 16)
        return 0;
    if (usage_parse(&u, text, size, "fuzz", 0, 0, 0, &e) == ERR_OK) {
        usage_merge(&u, &u);
        assert(usage_rate(&u, u.n_layer - 1, (int32_t)u.n_expert - 1, 1) <= 1);
        usage_close(&u);
    }
    struct tuning tuning = {.machine = "a"};
    if (tuning_parse(&tuning, text, size, "fuzz", &e) == ERR_OK)
        assert(tuning.sort_cutoff >= 1 && tuning.sort_cutoff <= TUNING_MAX_CUTOFF);
    if (trace_parse(&t, text, size, "fuzz", &fingerprint, &e) == ERR_OK) {
        if (t.n_tok * t.n_choice < 2000)
            replay(&t);
        trace_close(&t);
    }
    return 0;
}
