/* Text to tokens and back, from the vocabulary in a GGUF file.
 *
 * Two kinds: byte-level BPE ("gpt2"), whose text is first split by the pattern that tokenizer.ggml.pre names,
 * and SentencePiece-style ("llama": scores; "gemma4": merges over the same alphabet) with byte fallback.
 * Results equal those of the models' own tokenizers. An unknown tokenizer model or pre name is refused with
 * the known ones. A tokenizer is read-only after opening, owns all its data (the GGUF may be closed), and may
 * be shared between threads; each call allocates its own work space unless given one. */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct gguf;
struct tokenizer;

enum { TOKEN_NONE = -1 };

MUST_USE err_code tokenizer_open(struct tokenizer **out, const struct gguf *g, struct err *e);
void tokenizer_close(struct tokenizer **t);

int32_t tokenizer_n_vocab(const struct tokenizer *t);

/* Special ids as the file gives them, TOKEN_NONE where it doesn't. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
int32_t tokenizer_unknown(const struct tokenizer *t);
int32_t tokenizer_padding(const struct tokenizer *t);
/* What marks the parts of a text whose middle is to be filled in, and of several files. */
enum token_fill { FILL_PREFIX, FILL_SUFFIX, FILL_MIDDLE, FILL_PAD, FILL_REPOSITORY, FILL_FILE, N_FILL };
int32_t tokenizer_fill(const struct tokenizer *t, enum token_fill fill); /* as the file or the token's text says */
bool tokenizer_adds_bos(const struct tokenizer *t);
/* Whether the file doesn't name the pattern that text is split by, so that it may be another than the model's. */
bool tokenizer_pre_is_missing(const struct tokenizer *t);

/* Whether generation ends at this token: EOS, EOT, EOM as the file names them, and control tokens that by
 * their text end a turn (<|im_end|>, <|eot_id|>, <end_of_turn>, ...). */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* control or unknown tokens */
/* Whether the file forbids to generate it (suppress_tokens): stands for what no text is, or was never trained. */
bool tokenizer_is_suppressed(const struct tokenizer *t, int32_t id);

enum tokenize_flags {
    TOKENIZE_ADD_SPECIAL = 1,   /* BOS and EOS as the file says */
    TOKENIZE_PARSE_SPECIAL = 2, /* special tokens' texts become those tokens; otherwise they are plain text */
};

struct token_list {
    int32_t *ids; /* owned; release with token_list_close */
    size_t n, capacity;
};
void token_list_close(struct token_list *l);

/* Appends the tokens of n bytes of text (any bytes; invalid UTF-8 is tokenised as bytes) to *out. Bytes for
 * which the vocabulary has no token at all are dropped, as in the models' own tokenizers. */
MUST_USE err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                                   struct token_list *out, struct err *e);

/* The same for a prompt, of which trusted[i] says, 1 or 0, whether byte i may be part of a special token: a token's
 * text becomes the token where all its bytes are trusted and is plain text elsewhere. So it is for control tokens and
 * for user-defined ones of the form <|...|>; other user-defined ones are found anywhere. Words don't end where trust
 * does: plain text has the tokens that it has anyway. No BOS or EOS is added. */
MUST_USE err_code tokenizer_encode_prompt(const struct tokenizer *t, const char *text, const char *trusted, size_t n,
                                          struct token_list *out, struct err *e);

/* The bytes that a token stands for in running text, borrowed from the tokenizer, *n their count: may be part
 * of a UTF-8 sequence. Special tokens have none unless `special` asks for their text. An id outside the
 * vocabulary gives 0 bytes. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *n);

/* The text of n tokens, NUL-terminated, owned by the caller (mem_free). SentencePiece's leading space (the
 * one that encoding added) is removed. */
MUST_USE err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char **out,
                                   size_t *n_out, struct err *e);

#endif
