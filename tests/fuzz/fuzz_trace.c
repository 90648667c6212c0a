/* Any bytes as a trace, which is printed, read again and replayed. */
#define _POSIX_C_SOURCE 200809L
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "experts/trace.h"

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

static void read_again(const struct trace *t, uint64_t fingerprint)
{
    struct trace again;
    struct err e;
    uint64_t same;
    size_t n;
    char *text;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        abort();
    trace_print(t, fingerprint, f);
    fclose(f);
    if (trace_parse(&again, text, n, "again", &same, &e) != ERR_OK)
        abort();
    assert(same == fingerprint && again.n_tok == t->n_tok && again.n_choice == t->n_choice);
    assert(memcmp(again.ids, t->ids, (size_t)(t->n_tok * t->n_choice) * sizeof *t->ids) == 0);
    trace_close(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct trace t;
    struct err e;
    uint64_t fingerprint;
    int64_t n_expert = 0;
    if (trace_parse(&t, (const char *)data, size, "fuzz", &fingerprint, &e) != ERR_OK) {
        assert(!t.layers && !t.ids && e.text[0]);
        return 0;
    }
    read_again(&t, fingerprint);
    for (int l = 0; l < t.n_layer; l++)
        n_expert += t.layers[l].n_expert;
    if (t.n_tok * t.n_choice < 2000 && n_expert < 100000)
        replay(&t);
    trace_close(&t);
    return 0;
}
