/* Special tokens written out in text: finding them before the rest is tokenised. Longer texts win over
 * shorter ones wherever they stand; of one token, the leftmost occurrence comes first. */
#ifndef TOKENIZER_SPECIALS_H
#define TOKENIZER_SPECIALS_H

#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

struct special {
    struct text text; /* borrowed from the vocabulary */
    int32_t id;
    uint32_t order;   /* longest text first, then lowest id */
    uint32_t shorter; /* index of the longest special that is a proper prefix, or SYMBOL_NONE */
    bool user_defined;
    bool is_frame; /* <|...|>: whatever its type, it parts messages */
};

struct specials {
    struct special *sorted; /* by text, distinct */
    uint32_t n;
    bool starts[256], starts_user_defined[256]; /* first bytes */
};

MUST_USE err_code specials_open(struct specials *s, const struct vocab *v, struct err *e);
void specials_close(struct specials *s);

struct special_hit {
    size_t start, end; /* with the white space that it swallows */
    int32_t id;
};

/* Space for specials_find, reused. Zeroed before the first use. */
struct special_work {
    struct special_hit *hits; /* in the order of the text */
    size_t n, capacity;
    struct heap heap;
};
void special_work_close(struct special_work *w);

/* A text to look through. User-defined tokens are found anywhere, the others not without `parse`.
 *
 * Of a prompt, whose text is trusted in parts, those others are found where trusted[i] is 1 for all their bytes. So are
 * user-defined ones of the form <|...|>: vocabularies and engines call some tokens user-defined that begin and end
 * messages (gpt-oss's <|start|>, DeepSeek's <|User|> with wide bars), and such a one is not meant by a user's text. */
struct special_text {
    const char *s;
    size_t n;
    bool parse;
    const char *trusted; /* [n]; NULL: this is no prompt */
};
MUST_USE err_code specials_find(const struct specials *s, const struct vocab *v, struct special_work *w,
                                const struct special_text *t, struct err *e);

#endif
