#include "base/json_text.h"

#include <string.h>

#include "base/mem.h"
#include "base/printable.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* Copies the text, at most three times as long, and returns its length. */
static size_t replace_bad_bytes(const char *text, size_t n, char *out)
{
    size_t at = 0;
    for (size_t i = 0, length; i < n; i += length) {
        size_t good = printable_utf8_length(text + i, n - i);
        length = good ? good : 1;
        memcpy(out + at, good ? text + i : replacement, good ? good : sizeof replacement - 1);
        at += good ? good : sizeof replacement - 1;
    }
    return at;
}

json_t *json_text(const char *text, size_t n)
{
    json_t *j = json_stringn(text, n);
    char *copy = j ? NULL : mem_calloc(n + 1, sizeof replacement - 1);
    if (copy)
        j = json_stringn(copy, replace_bad_bytes(text, n, copy));
    mem_free(copy);
    return j;
}

char *json_write(const json_t *j, size_t flags, size_t *n)
{
    size_t n_text = json_dumpb(j, NULL, 0, flags);
    char *text = n_text ? mem_alloc(n_text + 1) : NULL;
    if (!text || json_dumpb(j, text, n_text, flags) != n_text) {
        mem_free(text);
        return NULL;
    }
    text[n_text] = '\0';
    if (n)
        *n = n_text;
    return text;
}

json_t *json_read(const char *text, size_t n, size_t flags, json_error_t *error)
{
    json_t *j = json_loadb(text, n, flags, error);
    return j ? j : json_loadb(text, n, flags, error); /* the text may have been blamed for what memory lacked */
}
