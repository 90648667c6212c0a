/* Any bytes as a model to quantise, and behind it an importance matrix. The first byte says which type to make, the
 * next two how many bytes the model has. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../unit/temp_folder.h"
#include "gguf/gguf.h"
#include "jobs/quantize.h"
#include "quant/quant_encode.h"

enum { HEAD_BYTES = 3 };

/* The encoders' tables take longer to make than all else here: the linker puts these in place of the room's own
 * functions, so that they are made once. */
err_code __real_quant_tables_create(struct quant_tables **out, struct err *e);
err_code __wrap_quant_tables_create(struct quant_tables **out, struct err *e);
void __wrap_quant_tables_close(struct quant_tables **t);

err_code __wrap_quant_tables_create(struct quant_tables **out, struct err *e)
{
    static struct quant_tables *kept;
    err_code code = kept ? ERR_OK : __real_quant_tables_create(&kept, e);
    *out = kept;
    return code;
}

void __wrap_quant_tables_close(struct quant_tables **t)
{
    *t = NULL;
}

struct input {
    int fd;
    char path[64];
};

static struct input make_input(const uint8_t *data, size_t size)
{
    struct input in = {.fd = memfd_create("input", 0)};
    if (in.fd < 0 || write(in.fd, data, size) != (ssize_t)size)
        abort();
    snprintf(in.path, sizeof in.path, "/proc/self/fd/%d", in.fd);
    return in;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"Q8_0", "Q4_0", "Q2_K", "Q4_K_M", "F16", "IQ4_NL", "MXFP4", "Q6_K"};
    struct err e = {0};
    struct gguf *in, *out;
    if (size < HEAD_BYTES)
        return 0;
    size_t n_model = (size_t)data[1] | (size_t)data[2] << 8;
    if (n_model > size - HEAD_BYTES)
        n_model = size - HEAD_BYTES;
    if (gguf_open_memory(&in, data + HEAD_BYTES, n_model, "fuzz", &e) != ERR_OK)
        return 0;
    size_t n_imatrix = size - HEAD_BYTES - n_model;
    struct input model = make_input(data + HEAD_BYTES, n_model);
    struct input imatrix = make_input(data + HEAD_BYTES + n_model, n_imatrix);
    FILE *report = fopen("/dev/null", "w");
    if (temp_folder_make(&folder) != 0 || !report)
        abort();
    struct temp_path target = temp_path(&folder, "o.gguf");
    const struct quantize_params params = {.in = model.path,
                                           .out = target.s,
                                           .type = types[data[0] & 7],
                                           .pure = data[0] & 8,
                                           .imatrix = n_imatrix ? imatrix.path : NULL,
                                           .n_threads = 1};
    if (quantize_run(&params, report, &e) == ERR_OK) {
        if (gguf_open(&out, target.s, &e) != ERR_OK)
            abort();
        assert(gguf_n_tensors(out) == gguf_n_tensors(in));
        gguf_close(&out);
    } else {
        assert(e.text[0] && access(target.s, F_OK) != 0);
    }
    fclose(report);
    temp_folder_remove(&folder);
    close(model.fd);
    close(imatrix.fd);
    gguf_close(&in);
    return 0;
}
