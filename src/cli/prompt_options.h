/* Reads tokens for commands: a prompt as options give it, a text file, or tokens for measurements. */
#ifndef CLI_PROMPT_OPTIONS_H
#define CLI_PROMPT_OPTIONS_H

#include "cli/options.h"
#include "moebius/moebius.h"

/* Parses "1,2,3" or "1 2 3". *ids [*n], which may be empty, is owned by the caller (mem_free). */
MUST_USE err_code cli_parse_ids(const char *text, int32_t **ids, size_t *n, struct err *e);

/* A prompt that is given as text, file or token ids: exactly one is not NULL. */
struct prompt_options {
    const char *text, *file, *tokens;
    bool continues; /* the prompt continues a session's text: it gets no BOS, and may be missing */
};
#define PROMPT_OPTIONS(p)                                                                                              \
    {"--prompt,-p", OPT_STRING, &(p).text, "TEXT", "the prompt", 0, 0, 0},                                             \
        {"--file,-f", OPT_INPUT, &(p).file, "FILE", "read the prompt from FILE (-: standard input)", 0, 0, 0},         \
    {                                                                                                                  \
        "--tokens", OPT_STRING, &(p).tokens, "1,2,3", "use exactly these tokens as the prompt", 0, 0, 0                \
    }
/* ERR_USAGE unless exactly one prompt is named or piped. Called before a model is loaded. */
MUST_USE err_code cli_check_prompt(const struct prompt_options *p, struct err *e);
/* cli_prompt_text reads the text of -p or -f, cli_prompt its tokens. If no prompt is named, they read standard input,
 * if that is a file or a pipe. Both results are owned by the caller (mem_free). */
MUST_USE err_code cli_prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e);
MUST_USE err_code cli_prompt(const struct prompt_options *p, const moebius_vocab *vocab, int32_t **ids, size_t *n,
                             struct err *e);

/* Reads a text file and tokenizes it, with BOS and EOS if the vocabulary asks for them. CR LF counts as LF, so that
 * copies of a text from different systems have the same tokens. *ids [*n] is owned by the caller (mem_free). */
MUST_USE err_code cli_read_tokens(const char *path, const moebius_vocab *vocab, int32_t **ids, size_t *n,
                                  struct err *e);

/* Tokens for measurements, at least one: those of a text file or, for path NULL, random ones that are the same in every
 * run. *ids [*n] is owned by the caller (mem_free). */
MUST_USE err_code cli_bench_tokens(const char *path, const moebius_engine *engine, int32_t **ids, size_t *n,
                                   struct err *e);

#endif
