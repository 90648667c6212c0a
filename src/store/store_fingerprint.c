#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/crc32c.h"
#include "store/store_internal.h"

enum { N_SAMPLE = 16, SAMPLE_BYTES = 4096 };

err_code store_fingerprint(struct store *s, char out[STORE_FINGERPRINT_BYTES], struct err *e)
{
    char work[SAMPLE_BYTES];
    uint32_t crc = 0;
    assert(s->gguf);
    for (int i = 0; i < gguf_n_files(s->gguf); i++) {
        uint64_t n_bytes = s->files[i].n_bytes;
        size_t n = n_bytes < SAMPLE_BYTES ? (size_t)n_bytes : SAMPLE_BYTES;
        for (uint64_t k = 0; k < N_SAMPLE; k++) { /* from the first byte to the last */
            TRY(store_read(s, &(struct store_range){i, (n_bytes - n) * k / (N_SAMPLE - 1), n, work}, 1, e));
            crc = crc32c(crc, work, n);
        }
    }
    snprintf(out, STORE_FINGERPRINT_BYTES, "%016" PRIx64 "-%08" PRIx32, gguf_fingerprint(s->gguf), crc);
    return ERR_OK;
}
