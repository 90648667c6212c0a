/* Any bytes as a saved session, as they are and with size and checksums put right: loads it into a session of a small
 * model. What is refused must leave the session as it was; what is loaded must go on. The first byte says which model:
 * recurrent and attention layers, or windowed ones. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "moebius/moebius.h"

enum { N_BYTES_OFF = 88, HEADER_BYTES = 120, CRC_BYTES = 4 };

static const char *const models[2] = {GOLDEN_DIR "/qwen3next.gguf", GOLDEN_DIR "/gpt_oss.gguf"};

static moebius_session *session_of(int i)
{
    static moebius_engine *engines[2];
    static moebius_session *sessions[2];
    const moebius_engine_options options = {.n_threads = 1};
    const moebius_session_options session_options = {.n_ctx = 40, .n_batch = 64};
    if (!sessions[i] && (moebius_engine_open(&engines[i], models[i], &options, NULL) != MOEBIUS_OK ||
                         moebius_session_open(&sessions[i], engines[i], &session_options, NULL) != MOEBIUS_OK))
        abort();
    return sessions[i];
}

static void load(moebius_session *s, const uint8_t *data, size_t size)
{
    static const int32_t ids[] = {3, 1, 2};
    char path[64];
    moebius_error error = {0};
    moebius_part part;
    int fd = memfd_create("session", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    moebius_session_truncate(s, 0);
    if (moebius_session_eval(s, ids, 3, &error) != MOEBIUS_OK)
        abort();
    moebius_status header = moebius_part_read(path, &part, &error);
    moebius_status status = moebius_session_load(s, path, &error);
    assert((status == MOEBIUS_OK) == (error.text[0] == '\0') && (status != MOEBIUS_OK || header == MOEBIUS_OK));
    assert(moebius_session_pos(s) == (status == MOEBIUS_OK ? part.n_tok : 3));
    if (moebius_session_pos(s) < moebius_session_n_ctx(s) && moebius_session_eval(s, ids, 1, &error) != MOEBIUS_OK)
        abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    moebius_session *s = session_of(data[0] & 1);
    data++;
    size--;
    load(s, data, size);
    if (size < HEADER_BYTES + CRC_BYTES)
        return 0;
    uint8_t *copy = malloc(size);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    uint64_t n_bytes = size;
    memcpy(copy + N_BYTES_OFF, &n_bytes, sizeof n_bytes);
    uint32_t crc = crc32c(0, copy, HEADER_BYTES - CRC_BYTES);
    memcpy(copy + HEADER_BYTES - CRC_BYTES, &crc, sizeof crc);
    crc = crc32c(0, copy, size - CRC_BYTES);
    memcpy(copy + size - CRC_BYTES, &crc, sizeof crc);
    load(s, copy, size);
    free(copy);
    return 0;
}
