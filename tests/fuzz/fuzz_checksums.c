/* Any bytes as the checksums beside a small model. */
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>

#include "store/checksums.h"

static struct store *the_store(void)
{
    static struct gguf *g;
    static struct store *s;
    struct err e;
    if (!s && (gguf_open(&g, GOLDEN_DIR "/llama_moe.gguf", &e) != ERR_OK || store_open_gguf(&s, g, &e) != ERR_OK))
        abort();
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct store *s = the_store();
    struct err e = {0};
    struct gguf *g;
    struct checksums c;
    uint32_t sum = 0;
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK)
        return 0;
    err_code code = checksums_parse(&c, s, g, &e);
    assert((code == ERR_OK) == (e.text[0] == '\0'));
    gguf_close(&g); /* the checksums are copied */
    for (uint64_t i = 0; i < c.n_tensors && code == ERR_OK; i++)
        sum += c.tensor[i];
    for (int l = 0; l < store_n_layers(s) && code == ERR_OK; l++)
        for (int i = 0; i < store_get_layer(s, l)->n_expert; i++)
            for (int p = 0; p < EXPERT_N_MATRIX; p++) {
                size_t at = checksums_index(&c, l, i, p);
                assert(at < c.n_parts);
                sum += c.part[at];
            }
    checksums_close(&c);
    volatile uint32_t sink = sum;
    (void)sink;
    return 0;
}
