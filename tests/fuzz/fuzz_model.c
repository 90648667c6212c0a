/* Any bytes as a model: what a GGUF's keys and tensors say about its layers, read with the null device. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "gguf/gguf.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct backend *device;
    struct model *m;
    struct err e = {0};
    if (gguf_open_memory(&g, data, size, "fuzz", &e) != ERR_OK)
        return 0;
    if (backend_null_open(&device, &e) == ERR_OK) {
        const struct model_load_params params = {.device = device, .mtp = true};
        if (model_load(&m, g, &params, &e) == ERR_OK)
            assert(m->n_layer >= 1 && m->layers[m->n_layer - 1].attn_norm.buffer);
        else
            assert(!m && strstr(e.text, "fuzz"));
        model_close(&m);
    }
    backend_close(&device);
    gguf_close(&g);
    return 0;
}
