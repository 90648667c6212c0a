/* Files of saved sessions, whole or in parts: what their headers say, and their tokens. docs/architecture.md has the
 * form. */
#ifndef ENGINE_SAVED_FILE_H
#define ENGINE_SAVED_FILE_H

#include "engine/engine_internal.h"

/* The header. What follows it is: the text's n_tok tokens (int32), including those before the part; n_logits logits
 * after the last token (float32); what the layers' state at n_tok has beyond that at `from` (model_state_save); and the
 * CRC32C of everything before. All numbers are little-endian. */
struct saved_header {
    char magic[8];
    uint32_t version, kv; /* kv: enum moebius_kv_type */
    char arch[32];
    uint32_t n_layer, n_embd, n_vocab, n_logits; /* n_logits: n_vocab or 0 */
    uint64_t fingerprint;                        /* store_fingerprint */
    uint64_t from, n_tok;                        /* tokens before the part, and at its end */
    uint64_t n_bytes;                            /* of the file */
    uint64_t hash_before, hash; /* moebius_tokens_hash of `from` and of n_tok tokens, begun with the session's
                                   moebius_session_part_key */
    uint32_t ids_crc;           /* CRC32C of the tokens */
    uint32_t crc;               /* CRC32C of the header's bytes before this field */
};

struct saved_reader {
    void *stream; /* FILE * */
    const char *path;
    uint32_t crc; /* of what was read */
};

/* The length of a file with a session's tokens [from, n_tok) and n_logits logits. */
uint64_t saved_bytes(const moebius_session *s, uint64_t from, uint64_t n_tok, uint64_t n_logits);
MUST_USE err_code saved_make_header(const moebius_session *s, int64_t from, int64_t n_tok, struct saved_header *h,
                                    struct err *e);

/* Opens a file and reads its header. Refuses one whose checksum is wrong or that disagrees with the file's length. */
MUST_USE err_code saved_open(struct saved_reader *r, const char *path, struct saved_header *h, struct err *e);
void saved_close(struct saved_reader *r);
/* Reads the file's next n bytes. */
MUST_USE err_code saved_get(struct saved_reader *r, void *bytes, size_t n, struct err *e);
/* Refuses a file of another model, with another type of caches, or of more tokens than the session's context. */
MUST_USE err_code saved_check_header(const moebius_session *s, const struct saved_header *h, const char *path,
                                     struct err *e);
/* Reads the tokens after the header, ids [n_tok]. Refuses wrong checksums and tokens beyond the vocabulary. */
MUST_USE err_code saved_get_ids(struct saved_reader *r, const struct saved_header *h, int32_t *ids, struct err *e);
/* Reads the checksum at the end, and compares it with that of all that was read. */
MUST_USE err_code saved_get_crc(struct saved_reader *r, struct err *e);

#endif
