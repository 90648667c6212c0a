/* What a vocabulary, a chat template and a grammar of the public interface are made of. */
#ifndef ENGINE_ENGINE_VOCAB_H
#define ENGINE_ENGINE_VOCAB_H

#include "base/mem.h"
#include "gguf/gguf.h"
#include "moebius/moebius.h"
#include "reply/reply.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

/* A chat template of the file. */
struct vocab_template {
    const char *name;   /* "": the default one */
    const char *source; /* its text */
    struct vocab_template *next;
};

struct moebius_vocab {
    struct tokenizer *tokenizer;
    struct vocab_template *templates; /* owned by the arena */
    struct vocab_bytes *bytes;        /* the tokens as grammars need them; filled by the first grammar */
    struct arena arena;
};

/* ---- grammars.c ------------------------------------------------------------------------------------------------ */

MUST_USE err_code vocab_bytes_open(struct vocab_bytes **out, struct err *e);
void vocab_bytes_close(struct vocab_bytes **b);
int32_t matcher_n_vocab(const moebius_matcher *m); /* tokens of its grammar's vocabulary; 0: there is none */

/* ---- chat_template.c ------------------------------------------------------------------------------------------- */

/* Reads the tokenizer and the chat templates from the file. The caller must call vocab_empty, even after a failure. */
MUST_USE err_code vocab_fill(struct moebius_vocab *v, const struct gguf *g, struct err *e);
void vocab_empty(struct moebius_vocab *v);

struct moebius_template {
    struct template *template;
    const moebius_vocab *vocab;    /* borrowed; may be NULL */
    const char *source;            /* owned by the arena */
    struct template_var tokens[4]; /* [n_token], special tokens by name; their texts are owned by the arena */
    int n_token;
    int32_t end;              /* the token that the template writes behind an answer, or TOKEN_NONE */
    struct reply_style style; /* how its model writes reasoning and calls */
    struct arena arena;
};

#endif
