/* Any bytes as a receipt, and as what llama-bench writes: what is taken is written and read again, the same. */
#include "fuzz.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "jobs/bench_import.h"

static void read_again(const struct receipt *r)
{
    struct receipt once, twice;
    struct err e;
    char *line;
    if (receipt_write(r, &line, &e) != ERR_OK)
        return;
    err_code code = receipt_parse(&once, line, strlen(line), "written", &e);
    assert(code == ERR_OK && !strchr(line, '\n'));
    mem_free(line);
    if (receipt_write(&once, &line, &e) != ERR_OK)
        return;
    code = receipt_parse(&twice, line, strlen(line), "written", &e);
    assert(code == ERR_OK && memcmp(&once, &twice, sizeof once) == 0); /* numbers are rounded the first time */
    mem_free(line);
}

/* What one receipt says of its own kind. */
static void calibrate(const struct receipt *list, size_t n)
{
    struct calibration c;
    for (int of = 0; n && of < SPEED_N; of++) {
        const struct calibration_query q = {.of = (enum speed_of)of,
                                            .regime = list[0].regime,
                                            .at = list[0].at,
                                            .n_threads = 3,
                                            .n_texts = 2,
                                            .n_tok = 100,
                                            .machine = "m",
                                            .fingerprint = 1,
                                            .time = {0.5, {0.25, 0, 0.125, of ? 0.5 : 0}}};
        if (receipts_calibrate(list, n, &q, &c))
            assert(0 < c.share && 0 <= c.low && c.low <= c.share && c.share <= c.high && c.high <= 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct bench_import in = {.n_layer = 48, .ceiling = {50, 500}};
    struct receipt r, *list;
    struct err e;
    size_t n;
    if (receipt_parse(&r, (const char *)data, size, "fuzz", &e) == ERR_OK) {
        read_again(&r);
        calibrate(&r, 1);
    }
    if (bench_import_read(&in, (const char *)data, size, "fuzz", &list, &n, &e) == ERR_OK) {
        for (size_t i = 0; i < n; i++)
            read_again(&list[i]);
        calibrate(list, n);
        mem_free(list);
    }
    return 0;
}
