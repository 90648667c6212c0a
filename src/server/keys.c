#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include "server/keys.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_KEY_BYTES = 512 };

struct keys {
    const char *given, *path;
    pthread_mutex_t lock;
    struct bytes list; /* each key NUL-terminated */
};

/* ---- reading --------------------------------------------------------------------------------------------------- */

static err_code add_key(struct bytes *list, const char *key, size_t n, const char *from, struct err *e)
{
    if (n == 0 || n > MAX_KEY_BYTES)
        return err_set(e, ERR_USAGE, "%s: a key has %zu bytes: expected 1 to %d", from, n, MAX_KEY_BYTES);
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)key[i]))
            return err_set(e, ERR_USAGE, "%s: a key has a character that no header can have: expected printable ASCII",
                           from);
    TRY(bytes_add(list, key, n, e));
    return bytes_add(list, "", 1, e);
}

static err_code add_lines(struct bytes *list, char *text, const char *path, struct err *e)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        while (isspace((unsigned char)*line))
            line++;
        size_t n = strlen(line);
        while (n && isspace((unsigned char)line[n - 1]))
            n--;
        if (n && *line != '#')
            TRY(add_key(list, line, n, path, e));
    }
    return ERR_OK;
}

static err_code read_file(const char *path, struct bytes *text, struct err *e)
{
    char piece[4096];
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    err_code code = ERR_OK;
    for (size_t n; code == ERR_OK && (n = fread(piece, 1, sizeof piece, f)) > 0;)
        code = text->n + n > MAX_FILE_BYTES
                   ? err_set(e, ERR_LIMIT, "%s: expected at most %d bytes", path, MAX_FILE_BYTES)
                   : bytes_add(text, piece, n, e);
    if (code == ERR_OK && ferror(f))
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    return code;
}

static err_code read_keys(const struct keys *k, struct bytes *list, struct err *e)
{
    struct bytes text = {0};
    if (k->given)
        TRY(add_key(list, k->given, strlen(k->given), "--api-key", e));
    if (!k->path)
        return ERR_OK;
    err_code code = read_file(k->path, &text, e);
    if (code == ERR_OK && text.n)
        code = add_lines(list, text.s, k->path, e);
    if (code == ERR_OK && list->n == 0)
        code = err_set(e, ERR_USAGE, "%s has no key: expected one a line", k->path);
    bytes_close(&text);
    return code;
}

err_code keys_reload(struct keys *k, struct err *e)
{
    struct bytes list = {0};
    err_code code = read_keys(k, &list, e);
    if (code == ERR_OK) {
        pthread_mutex_lock(&k->lock);
        struct bytes old = k->list;
        k->list = list;
        list = old;
        pthread_mutex_unlock(&k->lock);
    }
    bytes_close(&list);
    return code;
}

err_code keys_open(struct keys **out, const char *given, const char *path, struct err *e)
{
    struct keys *k = *out = mem_calloc(1, sizeof *k);
    if (!k)
        return err_nomem(e, sizeof *k, "keys");
    k->given = given;
    k->path = path;
    pthread_mutex_init(&k->lock, NULL);
    return keys_reload(k, e);
}

void keys_close(struct keys **keys)
{
    struct keys *k = *keys;
    if (!k)
        return;
    *keys = NULL;
    pthread_mutex_destroy(&k->lock);
    bytes_close(&k->list);
    mem_free(k);
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

bool keys_are_wanted(struct keys *k)
{
    return k->given || k->path;
}

/* Compares all n_a bytes, even after a difference, so that its time does not depend on them. */
static bool is_same(const char *a, size_t n_a, const char *b, size_t n_b)
{
    volatile unsigned char differ = n_a != n_b;
    for (size_t i = 0; i < n_a && n_b; i++)
        differ |= (unsigned char)(a[i] ^ b[i % n_b]);
    return !differ;
}

bool keys_have(struct keys *k, const char *key, uint64_t *which)
{
    size_t n = strlen(key);
    bool found = false;
    *which = 0;
    pthread_mutex_lock(&k->lock);
    uint64_t i = 1;
    for (size_t at = 0, n_own; at < k->list.n; at += n_own + 1, i++) {
        n_own = strlen(k->list.s + at);
        if (is_same(k->list.s + at, n_own, key, n)) {
            found = true;
            *which = i;
        }
    }
    pthread_mutex_unlock(&k->lock);
    return found;
}
