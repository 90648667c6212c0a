/* Any bytes as what `moebius batch` reads: each line as a request, and all of it as the answers of an earlier run,
 * which stay as they are, but for a torn last line. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/batch_output.h"
#include "cli/batch_request.h"

enum { MAX_TOKENS = 7 };

static void check_request(const char *line, size_t n)
{
    const struct batch_request defaults = {.max_tokens = MAX_TOKENS, .sampling = cli_default_sampling()};
    struct batch_request r;
    struct err e = {0};
    json_t *unknown = json_object();
    err_code code = batch_request_parse(&r, &defaults, line, n, 12, unknown, &e);
    char *key = batch_request_key(r.id);
    assert(r.id && r.line == 12 && key && (code == ERR_OK) == !*e.text);
    if (code == ERR_OK) {
        assert(!!r.text + !!r.messages + !!r.tokens == 1 && r.max_tokens >= -1);
        assert(r.sampling.sampler.temperature >= 0 && r.stops.n <= OPTION_LIST_MAX);
    }
    mem_free(key);
    json_decref(unknown);
    batch_request_close(&r);
}

static void check_requests(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t end = newline ? (size_t)(newline - text) : n;
        check_request(text + at, end - at);
        at = end + 1;
    }
}

static void check_answers(const void *data, size_t n)
{
    char path[] = "/tmp/fuzz_batch.XXXXXX";
    struct batch_output o = {0};
    struct err e;
    int fd = mkstemp(path);
    char *left = malloc(n + 1);
    assert(fd >= 0 && left && write(fd, data, n) == (ssize_t)n);
    err_code code = batch_output_open(&o, path, &e);
    ssize_t n_left = pread(fd, left, n + 1, 0);
    assert(n_left >= 0 && (size_t)n_left <= n && !memcmp(left, data, (size_t)n_left));
    if (code != ERR_OK)
        assert((size_t)n_left == n && *e.text);
    else
        assert(n_left == 0 || left[n_left - 1] == '\n');
    batch_output_close(&o);
    close(fd);
    unlink(path);
    free(left);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_requests((const char *)data, size);
    check_answers(data, size);
    return 0;
}
