/* Any bytes as the manifest of a prepared store. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "store/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct manifest m = {0};
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK)
        return 0;
    err_code code = manifest_parse(&m, g, &e);
    assert(code == ERR_OK || e.text[0] != '\0');
    gguf_close(&g); /* the manifest owns what it needs */
    if (code == ERR_OK) {
        uint64_t end = manifest_data_bytes(&m);
        assert(end % STORE_ALIGN == 0 && end <= INT64_MAX);
        assert(manifest_check(&m, "fuzz", &m, &e) == ERR_OK);
        for (int l = 0; l < m.n_layers; l++)
            for (int i = 0; i < m.layers[l].n_expert; i++)
                assert(manifest_index(&m, l, i) < m.n_experts);
    }
    manifest_close(&m);
    return 0;
}
