/* Inside the tokenizer: its parts, and text to tokens. */
#ifndef TOKENIZER_ENCODE_H
#define TOKENIZER_ENCODE_H

#include "tokenizer/merges.h"
#include "tokenizer/specials.h"
#include "tokenizer/split.h"
#include "tokenizer/vocab.h"

struct tokenizer {
    struct vocab vocab;
    struct specials specials;
    struct merges merges;      /* empty for VOCAB_SCORES */
    struct splitter *splitter; /* NULL for VOCAB_SCORES */
    bool ignore_merges, newline_runs;
    bool pre_is_missing;        /* the file doesn't name the split rule */
    uint32_t byte_symbols[256]; /* VOCAB_BYTE_MERGES: the symbol of each byte */
    int32_t byte_tokens[256];   /* of a byte that is in no token; TOKEN_NONE: the byte is dropped */
};

/* Fills in the tables above, after the vocabulary and the merges. */
MUST_USE err_code encode_prepare(struct tokenizer *t, struct err *e);

#endif
