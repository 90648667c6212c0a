/* Checks the `tokenize` entries of all golden files: test_tokenize FOLDER. NAME.json's texts are encoded with
 * the vocabulary of NAME.gguf; a file whose GGUF is not there is skipped. Fails when nothing was checked. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

static bool ids_equal(const struct token_list *ours, const json_t *ids)
{
    if (json_array_size(ids) != ours->n)
        return false;
    for (size_t i = 0; i < ours->n; i++)
        if (json_integer_value(json_array_get(ids, i)) != ours->ids[i])
            return false;
    return true;
}

static int entry_check(const struct tokenizer *t, const char *file, const json_t *entry)
{
    const json_t *text = json_object_get(entry, "text"), *ids = json_object_get(entry, "ids");
    if (!json_is_string(text) || !json_is_array(ids)) {
        fprintf(stderr, "%s: a tokenize entry lacks its text or its ids\n", file);
        return 1;
    }
    unsigned flags = (json_is_true(json_object_get(entry, "add_special")) ? TOKENIZE_ADD_SPECIAL : 0) |
                     (json_is_true(json_object_get(entry, "parse_special")) ? TOKENIZE_PARSE_SPECIAL : 0);
    struct err e = {0};
    struct token_list ours = {0};
    err_code code = tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ours, &e);
    bool equal = code == ERR_OK && ids_equal(&ours, ids);
    if (!equal) {
        fprintf(stderr, "%s: \"%s\" (flags %u): %s\n  got", file, json_string_value(text), flags, e.text);
        for (size_t i = 0; i < ours.n; i++)
            fprintf(stderr, " %" PRId32, ours.ids[i]);
        char *expected = json_dumps(ids, 0);
        fprintf(stderr, "\n  expected %s\n", expected);
        free(expected);
    }
    token_list_close(&ours);
    return !equal;
}

static int file_check(const char *folder, const char *name, int *n_checked)
{
    char json_path[4096], gguf_path[4096];
    snprintf(json_path, sizeof json_path, "%s/%s", folder, name);
    snprintf(gguf_path, sizeof gguf_path, "%s/%.*s.gguf", folder, (int)(strlen(name) - strlen(".json")), name);
    json_error_t error;
    json_t *root = json_load_file(json_path, JSON_ALLOW_NUL, &error);
    if (!root) {
        fprintf(stderr, "%s: %s\n", json_path, error.text);
        return 1;
    }
    const json_t *entries = json_object_get(root, "tokenize");
    FILE *there = json_array_size(entries) > 0 ? fopen(gguf_path, "rb") : NULL;
    if (!there) {
        json_decref(root);
        return 0;
    }
    fclose(there);
    struct err e = {0};
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    int n_failed = 0;
    if (gguf_open(&g, gguf_path, &e) != ERR_OK || tokenizer_open(&t, g, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
        n_failed = 1;
    } else {
        for (size_t i = 0; i < json_array_size(entries); i++, ++*n_checked)
            n_failed += entry_check(t, name, json_array_get(entries, i));
    }
    tokenizer_close(&t);
    gguf_close(&g);
    json_decref(root);
    return n_failed;
}

int main(int argc, char **argv)
{
    DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    int n_checked = 0, n_failed = 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        const char *end = strrchr(entry->d_name, '.');
        if (end && strcmp(end, ".json") == 0)
            n_failed += file_check(argv[1], entry->d_name, &n_checked);
    }
    closedir(d);
    printf("%d texts checked, %d failed\n", n_checked, n_failed);
    return n_failed > 0 || n_checked == 0;
}
