#include "cli/prompt_options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "base/random.h"
#include "cli/input_text.h"

#define BLANKS " \t\r\n"

err_code cli_parse_ids(const char *text, int32_t **ids, size_t *n, struct err *e)
{
    size_t capacity = strlen(text) / 2 + 1;
    int32_t *list = mem_calloc(capacity, sizeof *list);
    if (!list)
        return err_nomem(e, capacity * sizeof *list, "token ids");
    *n = 0;
    for (const char *p = text + strspn(text, BLANKS); *p; *n += 1) {
        char *end;
        p += *p == ',' && *n > 0;
        p += strspn(p, BLANKS);
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || (*end && !strchr("," BLANKS, *end))) {
            const int n_shown = (int)min_i64((int64_t)strcspn(p, "," BLANKS), 20);
            mem_free(list);
            return n_shown
                       ? err_set(e, ERR_USAGE, "tokens: \"%.*s\" is not a token id: expected numbers like 1,2,3",
                                 n_shown, p)
                       : err_set(e, ERR_USAGE, "tokens: number %zu is missing: expected numbers like 1,2,3", *n + 1);
        }
        list[*n] = (int32_t)id;
        p = end + strspn(end, BLANKS);
    }
    *ids = list;
    return ERR_OK;
}

/* Checks that there is exactly one form of prompt, or none if a saved text is continued. Standard input counts if it is
 * piped. */
static err_code choose_prompt(const struct prompt_options *p, struct prompt_options *out, struct err *e)
{
    *out = *p;
    if (!p->text && !p->tokens && !p->continues)
        out->file = cli_file_or_piped(p->file);
    int n_given = !!out->text + !!out->file + !!out->tokens;
    if (n_given != 1 && !(p->continues && n_given == 0))
        return err_set(e, ERR_USAGE, "expected one prompt: -p TEXT, -f FILE, --tokens 1,2,3 or a text that is piped");
    return ERR_OK;
}

err_code cli_check_prompt(const struct prompt_options *p, struct err *e)
{
    struct prompt_options chosen;
    int32_t *ids = NULL;
    size_t n;
    TRY(choose_prompt(p, &chosen, e));
    if (p->tokens)
        TRY(cli_parse_ids(p->tokens, &ids, &n, e));
    mem_free(ids);
    return ERR_OK;
}

/* The text of the prompt. */
static err_code prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e)
{
    if (p->file)
        return cli_read_file(p->file, text, n, e);
    *n = p->text ? strlen(p->text) : 0;
    *text = mem_strdup(p->text ? p->text : "");
    return *text ? ERR_OK : err_nomem(e, *n, "the prompt");
}

err_code cli_prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e)
{
    struct prompt_options chosen;
    TRY(choose_prompt(p, &chosen, e));
    return prompt_text(&chosen, text, n, e);
}

err_code cli_prompt(const struct prompt_options *p, const moebius_vocab *vocab, int32_t **ids, size_t *n, struct err *e)
{
    struct prompt_options chosen;
    TRY(choose_prompt(p, &chosen, e));
    if (p->tokens)
        return cli_parse_ids(p->tokens, ids, n, e);
    char *text = NULL;
    size_t n_text;
    TRY(prompt_text(&chosen, &text, &n_text, e));
    moebius_error error;
    moebius_status status = moebius_tokenize(vocab, text, n_text, !p->continues, false, ids, n, &error);
    mem_free(text);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

/* Converts CR LF to LF in place; returns the new length. */
static size_t unify_line_ends(char *text, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\r' || i + 1 == n || text[i + 1] != '\n')
            text[kept++] = text[i];
    return kept;
}

err_code cli_read_tokens(const char *path, const moebius_vocab *vocab, int32_t **ids, size_t *n, struct err *e)
{
    char *text = NULL;
    size_t n_text;
    moebius_error error;
    err_code code = cli_read_file(path, &text, &n_text, e);
    if (code == ERR_OK &&
        moebius_tokenize(vocab, text, unify_line_ends(text, n_text), true, false, ids, n, &error) != MOEBIUS_OK)
        code = err_adopt(e, &error);
    mem_free(text);
    return code;
}

err_code cli_bench_tokens(const char *path, const moebius_engine *engine, int32_t **ids, size_t *n, struct err *e)
{
    enum { N_RANDOM = 4096, SEED = 1 };
    if (path) {
        const struct prompt_options from = {.file = path};
        TRY(cli_prompt(&from, moebius_engine_vocab(engine), ids, n, e));
        return *n ? ERR_OK : err_set(e, ERR_USAGE, "%s: holds no tokens", path);
    }
    struct random r = random_seed(SEED);
    *n = N_RANDOM;
    *ids = mem_calloc(N_RANDOM, sizeof **ids);
    if (!*ids)
        return err_nomem(e, N_RANDOM * sizeof **ids, "tokens");
    for (int i = 0; i < N_RANDOM; i++)
        (*ids)[i] = (int32_t)(random_u32(&r) % (uint32_t)moebius_n_vocab(engine));
    return ERR_OK;
}
