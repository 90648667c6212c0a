/* Splitting text into the words that byte-pair merging works on, by the rule that tokenizer.ggml.pre names.
 *
 * Patterns run over one byte a character: ASCII as it is, anything else as its class (general category and
 * the sets that the rule names). So the tables of split_rules.def and unicode_classes.def alone decide what a
 * letter is, not the version of the pattern library, and broken UTF-8 needs no special care. Refuses unknown
 * names. */
#ifndef TOKENIZER_SPLIT_H
#define TOKENIZER_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum split_pre_flags {
    PRE_IGNORE_MERGES = 1, /* a word that is a token is that token, whatever the merges say */
    PRE_ADD_BOS = 2,       /* BOS is added unless the file says no */
    PRE_ALWAYS_BOS = 4,    /* BOS is added even if the file says no */
    PRE_RAW = 8,           /* merges work on UTF-8 with U+2581 for spaces, not on mapped bytes */
    PRE_NEWLINE_RUNS = 16, /* a run of newlines that is a token is that token */
    PRE_NO_MERGES = 32,    /* the file may lack merges */
};

struct split_pre {
    const char *name;
    const char *const *patterns; /* ends with NULL */
    unsigned flags;
};

/* NULL when the name is unknown. */
const struct split_pre *split_pre_find(const char *name, size_t n);

/* ERR_UNSUPPORTED with the known names. */
err_code split_pre_unknown(const char *name, size_t n, struct err *e);

struct splitter;
MUST_USE err_code splitter_open(struct splitter **out, const struct split_pre *pre, struct err *e);
void splitter_close(struct splitter **s);

/* One text cut into words, and the space for it, reused from text to text. Zeroed before the first use. */
struct split_work {
    size_t n_chars;
    uint8_t *char_bytes; /* [n_chars]: how long each character is */
    uint8_t *starts;     /* [n_chars + 1]: whether a word starts here; the last one is set */
    uint8_t *classes;    /* [n_chars] */
    size_t capacity;
    void *match_data, *match_context;
};
void split_work_close(struct split_work *w);

/* Cuts n bytes of text; ERR_LIMIT if matching would take unreasonably long. */
MUST_USE err_code splitter_run(const struct splitter *s, struct split_work *w, const char *text, size_t n,
                               struct err *e);

#endif
