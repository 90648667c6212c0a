/* Checks our tokens against llama.cpp's vocabulary cases: vocab_cases VOCAB.gguf CASES.inp CASES.out.
 * The texts of the .inp file are separated by a marker line; each has a line of ids in the .out file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"
#include "../unit/whole_files.h"

static const char separator[] = "\n__ggml_vocab_test__\n";

/* Whether the line of ids at *line is the list; moves *line to the next. */
static bool line_equal(const struct token_list *ours, char **line)
{
    char *p = *line, *end = strchr(p, '\n');
    size_t i = 0;
    bool equal = true;
    for (; p < end; i++) {
        char *after;
        long id = strtol(p, &after, 10);
        if (after == p || after > end)
            break;
        equal = equal && i < ours->n && ours->ids[i] == id;
        p = after;
    }
    *line = end + 1;
    return equal && i == ours->n;
}

static int case_check(const struct tokenizer *t, const char *text, size_t n, char **line, int number)
{
    struct err e = {0};
    struct token_list ours = {0};
    int failed = 0;
    char *expected = *line;
    if (tokenizer_encode(t, text, n, 0, &ours, &e) != ERR_OK) {
        fprintf(stderr, "case %d: %s\n", number, e.text);
        failed = 1;
    } else if (!line_equal(&ours, line)) {
        fprintf(stderr, "case %d: \"%.*s\"\n  expected %.*s\n  got     ", number, (int)n, text,
                (int)(*line - expected - 1), expected);
        for (size_t i = 0; i < ours.n; i++)
            fprintf(stderr, " %" PRId32, ours.ids[i]);
        fprintf(stderr, "\n");
        failed = 1;
    }
    token_list_close(&ours);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s VOCAB.gguf CASES.inp CASES.out\n", argv[0]);
        return 2;
    }
    struct err e = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    if (gguf_open(&g, argv[1], &e) != ERR_OK || tokenizer_open(&t, g, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
        gguf_close(&g);
        return 1;
    }
    gguf_close(&g);
    size_t n_inp, n_out;
    char *inp = read_file(argv[2], &n_inp), *out = read_file(argv[3], &n_out);
    char *line = out;
    int n_cases = 0, n_failed = 0;
    for (char *text = inp; text && strchr(line, '\n'); n_cases++) {
        char *next = strstr(text, separator);
        size_t n = next ? (size_t)(next - text) : n_inp - (size_t)(text - inp);
        n_failed += case_check(t, text, n, &line, n_cases);
        text = next ? next + strlen(separator) : NULL;
    }
    printf("%s: %d cases, %d failed\n", argv[1], n_cases, n_failed);
    free(inp);
    free(out);
    tokenizer_close(&t);
    return n_failed > 0 || n_cases == 0;
}
