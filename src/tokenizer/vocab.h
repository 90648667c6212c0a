/* The tokens of a vocabulary: texts, attributes, special ids, and what each token prints as. */
#ifndef TOKENIZER_VOCAB_H
#define TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "tokenizer/symbols.h"
#include "tokenizer/tokenizer.h"

struct gguf;

/* Limits against absurd files; the largest vocabularies have 262,144 tokens, 514,906 merges and texts of some hundred
 * bytes. */
enum { VOCAB_MAX_TOKENS = 1 << 20, VOCAB_MAX_MERGES = 1 << 20, VOCAB_MAX_TEXT_BYTES = 4096 };

enum token_attr {
    TOKEN_UNKNOWN = 1,
    TOKEN_CONTROL = 2,      /* matched in text only when asked for; prints nothing in running text */
    TOKEN_USER_DEFINED = 4, /* always matched in text */
    TOKEN_NORMAL = 8,
    TOKEN_BYTE = 16,
    TOKEN_RSTRIP = 32, /* swallows white space after it */
    TOKEN_ENDS = 64,   /* ends generation */
    TOKEN_NEVER = 128, /* is not to be generated */

    TOKEN_SPECIAL = TOKEN_UNKNOWN | TOKEN_CONTROL,
    TOKEN_IN_TEXT = TOKEN_SPECIAL | TOKEN_USER_DEFINED, /* looked for before anything else */
};

enum vocab_kind {
    VOCAB_SCORES,      /* SentencePiece alphabet, scores */
    VOCAB_RAW_MERGES,  /* SentencePiece alphabet, merges */
    VOCAB_BYTE_MERGES, /* bytes mapped to printable characters, merges */
};

/* What the kind of tokenizer says where the file is silent. */
struct vocab_defaults {
    enum vocab_kind kind;
    int32_t bos, eos, unknown;
    bool add_bos, always_bos;
};

struct vocab {
    enum vocab_kind kind;
    struct symbols symbols; /* numbers below n_tokens are tokens */
    uint32_t n_tokens;
    size_t max_text_bytes;
    uint8_t *attrs;      /* [n_tokens] */
    struct text *pieces; /* [n_tokens]; bytes owned by symbols */
    float *scores;       /* [n_tokens] or NULL */
    int32_t bos, eos, unknown, padding;
    int32_t fills[N_FILL];
    bool add_bos, add_eos, add_space_prefix;
};

MUST_USE err_code vocab_open(struct vocab *v, const struct gguf *g, const struct vocab_defaults *d, struct err *e);
void vocab_close(struct vocab *v);

/* The token with this text or TOKEN_NONE. */
int32_t vocab_find(const struct vocab *v, const char *s, size_t n);

/* The printable code point that stands for each byte in byte-level vocabularies (GPT-2's mapping): itself
 * where it is printable Latin-1, else 256 and up in order of the bytes. */
enum { BYTE_CODE_END = 256 + 68 };
void byte_codes_fill(uint16_t code_of[256]);

#endif
