/* Any bytes as a saved session or a part of one, as they are and with size and checksums put right: loads it into a
 * session of a small model. What is refused must leave the session as it was; what is loaded must go on. Of the first
 * byte, bit 0 says which model: recurrent and attention layers, or windowed ones; bit 1: the bytes are a part that is
 * appended. */
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

/* Places in the header (engine/saved_file.h). */
enum { N_TOK_OFF = 80, N_BYTES_OFF = 88, IDS_CRC_OFF = 112, CRC_OFF = 116, HEADER_BYTES = 120, CRC_BYTES = 4 };
enum { N_CTX = 40, N_BEGUN = 3 };

static const char *const models[2] = {GOLDEN_DIR "/qwen3next.gguf", GOLDEN_DIR "/gpt_oss.gguf"};

static moebius_session *session_of(int i)
{
    static moebius_engine *engines[2];
    static moebius_session *sessions[2];
    const moebius_engine_options options = {.n_threads = 1};
    const moebius_session_options session_options = {.n_ctx = N_CTX, .n_batch = 64};
    if (!sessions[i] && (moebius_engine_open(&engines[i], models[i], &options, NULL) != MOEBIUS_OK ||
                         moebius_session_open(&sessions[i], engines[i], &session_options, NULL) != MOEBIUS_OK))
        abort();
    return sessions[i];
}

/* The tokens that a header counts can be had, or are refused. */
static void read_tokens(const char *path, const moebius_part *part)
{
    moebius_error error = {0};
    int64_t n = part->n_tok - part->from;
    int32_t *ids = malloc((size_t)n * sizeof *ids + 1);
    if (!ids)
        abort();
    moebius_status status = moebius_part_tokens(path, ids, n, &error);
    assert((status == MOEBIUS_OK) == (error.text[0] == '\0'));
    free(ids);
}

static void load(moebius_session *s, bool is_part, const uint8_t *data, size_t size)
{
    static const int32_t ids[N_BEGUN] = {3, 1, 2};
    char path[64];
    moebius_error error = {0};
    moebius_part part;
    int fd = memfd_create("session", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    moebius_session_truncate(s, 0);
    if (moebius_session_eval(s, ids, N_BEGUN, &error) != MOEBIUS_OK)
        abort();
    moebius_status header = moebius_part_read(path, &part, &error);
    if (header == MOEBIUS_OK)
        read_tokens(path, &part);
    moebius_status status =
        is_part ? moebius_session_load_part(s, path, &error) : moebius_session_load(s, path, &error);
    assert((status == MOEBIUS_OK) == (error.text[0] == '\0') && (status != MOEBIUS_OK || header == MOEBIUS_OK));
    assert(moebius_session_pos(s) == (status == MOEBIUS_OK ? part.n_tok : N_BEGUN));
    assert(status != MOEBIUS_OK || part.from == (is_part ? N_BEGUN : 0));
    assert(memcmp(moebius_session_tokens(s), ids, sizeof ids) == 0 || (status == MOEBIUS_OK && !is_part));
    if (moebius_session_pos(s) < moebius_session_n_ctx(s) && moebius_session_eval(s, ids, 1, &error) != MOEBIUS_OK)
        abort();
    close(fd);
}

/* Puts the size and the checksums right. */
static void repair(uint8_t *bytes, size_t size)
{
    uint64_t n_bytes = size, n_tok, most = (size - HEADER_BYTES - CRC_BYTES) / sizeof(int32_t);
    memcpy(bytes + N_BYTES_OFF, &n_bytes, sizeof n_bytes);
    memcpy(&n_tok, bytes + N_TOK_OFF, sizeof n_tok);
    uint32_t crc = crc32c(0, bytes + HEADER_BYTES, (size_t)(n_tok < most ? n_tok : most) * sizeof(int32_t));
    memcpy(bytes + IDS_CRC_OFF, &crc, sizeof crc);
    crc = crc32c(0, bytes, CRC_OFF);
    memcpy(bytes + CRC_OFF, &crc, sizeof crc);
    crc = crc32c(0, bytes, size - CRC_BYTES);
    memcpy(bytes + size - CRC_BYTES, &crc, sizeof crc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    moebius_session *s = session_of(data[0] & 1);
    bool is_part = data[0] & 2;
    data++;
    size--;
    load(s, is_part, data, size);
    if (size < HEADER_BYTES + CRC_BYTES)
        return 0;
    uint8_t *copy = malloc(size);
    if (!copy)
        abort();
    memcpy(copy, data, size);
    repair(copy, size);
    load(s, is_part, copy, size);
    free(copy);
    return 0;
}
