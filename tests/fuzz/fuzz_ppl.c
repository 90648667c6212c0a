/* Any bytes as the file that a measurement of perplexity goes on from. */
#include "fuzz.h"

#include <assert.h>
#include <math.h>

#include "jobs/ppl_resume.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct ppl_identity mine = {0x1234, 0xfeed, "ctx 512 kv f16"};
    struct ppl_sums s;
    struct err e;
    if (ppl_resume_parse(&mine, (const char *)data, size, "fuzz", &s, &e) == ERR_OK)
        assert(s.n_window > 0 && s.n_scored > 0 && s.n_same <= s.n_scored && isfinite(s.nll) && isfinite(s.divergence));
    return 0;
}
