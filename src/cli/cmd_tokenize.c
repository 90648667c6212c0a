/* tokenize and detokenize: text to tokens and back, with the vocabulary of a GGUF that may hold nothing else. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/input_text.h"
#include "cli/prompt_options.h"
#include "cli/text_out.h"

/* The text: the only operand or, without one, the content of a file or of standard input. *owned must be freed. */
static err_code read_text(int argc, char **argv, const char *file, char **owned, const char **text, size_t *n,
                          struct err *e)
{
    if (argc > 1 && file)
        return err_set(e, ERR_USAGE, "\"%s\" and -f %s: expected one text", argv[1], file);
    file = argc > 1 ? NULL : cli_file_or_piped(file);
    if (argc == 1 && !file)
        return err_set(e, ERR_USAGE, "no text: expected one in quotes, -f FILE, or - for standard input");
    if (file) {
        TRY(cli_read_file(file, owned, n, e));
        *text = *owned;
        return ERR_OK;
    }
    *text = argv[1];
    *n = strlen(*text);
    return ERR_OK;
}

/* The piece as a quoted string, printable. */
static void print_quoted(const char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n;) {
        struct printable p = printable_next(s + i, n - i);
        if (s[i] == '"' || s[i] == '\\')
            putchar('\\');
        fputs(p.shown, stdout);
        i += p.n_bytes;
    }
    putchar('"');
}

void tokenize_print(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool pieces)
{
    for (size_t i = 0; i < n; i++) {
        printf("%s%d", i && !pieces ? " " : "", (int)ids[i]);
        if (pieces) {
            size_t n_piece;
            const char *piece = moebius_token_piece(vocab, ids[i], true, &n_piece);
            putchar('\t');
            print_quoted(piece, n_piece);
            putchar('\n');
        }
    }
    if (!pieces)
        putchar('\n');
}

static err_code open_vocab(const char *path, moebius_vocab **vocab, struct err *e)
{
    moebius_error error;
    if (!path)
        return err_set(e, ERR_USAGE, "no model: name one with -m FILE");
    return moebius_vocab_open(vocab, path, &error) == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

static int run_tokenize(const struct command *c, int argc, char **argv)
{
    const char *path = NULL, *text = NULL, *file = NULL;
    bool no_special = false, parse_special = false, ids_only = false, pieces = false, no_sandbox = false;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &path, "FILE", "GGUF file with a vocabulary; may be the first word instead", 0, 0, 0},
        {"--file,-f", OPT_INPUT, &file, "FILE", "read the text from FILE (-: standard input)", 0, 0, 0},
        {"--no-special", OPT_FLAG, &no_special, "", "do not add the BOS and EOS that the model asks for", 0, 0, 0},
        {"--parse-special", OPT_FLAG, &parse_special, "", "parse special tokens in the text", 0, 0, 0},
        {"--ids", OPT_FLAG, &ids_only, "", "print ids on one line (the default)", 0, 0, 0},
        {"--pieces", OPT_FLAG, &pieces, "", "print one line per token: id and text", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    moebius_vocab *vocab = NULL;
    char *owned = NULL;
    int32_t *ids = NULL;
    size_t n = 0, n_ids = 0;
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && ids_only && pieces)
        code = err_set(&e, ERR_USAGE, "--ids and --pieces: choose one");
    if (code == ERR_OK)
        code = open_vocab(path, &vocab, &e);
    if (code == ERR_OK)
        code = read_text(argc, argv, file, &owned, &text, &n, &e);
    moebius_error error;
    if (code == ERR_OK && moebius_tokenize(vocab, text, n, !no_special, parse_special, &ids, &n_ids, &error) != 0)
        code = err_adopt(&e, &error);
    if (code == ERR_OK)
        tokenize_print(vocab, ids, n_ids, pieces);
    moebius_free(ids);
    moebius_vocab_close(&vocab);
    mem_free(owned);
    return cli_exit(c, code, &e);
}

/* The text with the numbers: all operands or, without any, the content of a file or of standard input. Owned by the
 * caller. */
static err_code join_operands(int argc, char **argv, const char *file, char **text, struct err *e)
{
    size_t n = 1;
    if (argc > 1 && file)
        return err_set(e, ERR_USAGE, "\"%s\" and -f %s: expected one of the two", argv[1], file);
    file = argc > 1 ? NULL : cli_file_or_piped(file);
    if (argc < 2 && !file)
        return err_set(e, ERR_USAGE, "no tokens: expected numbers, -f FILE, or - for standard input");
    if (file)
        return cli_read_file(file, text, &n, e);
    for (int i = 1; i < argc; i++)
        n += strlen(argv[i]) + 1;
    char *p = *text = mem_alloc(n);
    if (!p)
        return err_nomem(e, n, "tokens");
    for (int i = 1; i < argc; i++)
        p += snprintf(p, n - (size_t)(p - *text), "%s ", argv[i]);
    return ERR_OK;
}

static int run_detokenize(const struct command *c, int argc, char **argv)
{
    const char *path = NULL, *file = NULL;
    bool special = false, raw = false, no_sandbox = false;
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &path, "FILE", "GGUF file with a vocabulary; may be the first word instead", 0, 0, 0},
        {"--file,-f", OPT_INPUT, &file, "FILE", "read the ids from FILE (-: standard input)", 0, 0, 0},
        {"--special", OPT_FLAG, &special, "", "print special tokens as their text", 0, 0, 0},
        RAW_OPTION(raw),
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    moebius_vocab *vocab = NULL;
    char *numbers = NULL, *text = NULL;
    int32_t *ids = NULL;
    size_t n_ids, n;
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = open_vocab(path, &vocab, &e);
    if (code == ERR_OK)
        code = join_operands(argc, argv, file, &numbers, &e);
    if (code == ERR_OK)
        code = cli_parse_ids(numbers, &ids, &n_ids, &e);
    for (size_t i = 0; code == ERR_OK && i < n_ids; i++)
        if (ids[i] >= moebius_vocab_size(vocab))
            code = err_set(&e, ERR_USAGE, "token %d: the vocabulary ends at %d", (int)ids[i],
                           (int)moebius_vocab_size(vocab) - 1);
    moebius_error error;
    if (code == ERR_OK && moebius_detokenize(vocab, ids, n_ids, special, &text, &n, &error) != 0)
        code = err_adopt(&e, &error);
    if (code == ERR_OK) {
        struct text_out out;
        text_out_open(&out, stdout, raw);
        text_out_write(&out, text, n);
        text_out_end(&out);
        putchar('\n');
    }
    moebius_free(text);
    moebius_vocab_close(&vocab);
    mem_free(ids);
    mem_free(numbers);
    return cli_exit(c, code, &e);
}

const struct command cmd_tokenize = {
    .name = "tokenize",
    .usage = "-m FILE [OPTIONS] (TEXT | -f FILE | -)",
    .summary = "convert text to tokens",
    .details =
        "After --, TEXT may begin with a dash. Without a text, standard input is read, if it is a file or a pipe.",
    .max_operand = 1,
    .hint = "put the text in quotes",
    .group = COMMAND_LOOK,
    .run = run_tokenize,
};

const struct command cmd_detokenize = {
    .name = "detokenize",
    .usage = "-m FILE [OPTIONS] (ID... | -f FILE | -)",
    .summary = "convert tokens to text",
    .max_operand = INT_MAX - 1,
    .group = COMMAND_LOOK,
    .run = run_detokenize,
};
