#include "cli/json_text.h"

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
