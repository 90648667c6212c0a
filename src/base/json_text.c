#include "base/json_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

static const char replacement[] = UTF8_REPLACEMENT;

/* Copies the text, at most three times as long, and returns its length. */
static size_t replace_bad_bytes(const char *text, size_t n, char *out)
{
    size_t at = 0;
    for (size_t i = 0, length; i < n; i += length) {
        size_t good = utf8_length(text + i, n - i);
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

json_t *json_float(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)x);
    return json_real(strtod(text, NULL));
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

/* Copies n bytes of JSON, with .0 behind integers that 64 bits don't hold: at most three times as long. Returns the
 * length. */
static size_t widen_integers(const char *text, size_t n, char *out)
{
    size_t at = 0;
    bool in_string = false;
    for (size_t i = 0, length; i < n; i += length) {
        char *end;
        length = in_string ? 0 : strspn(text + i, "+-0123456789.eE");
        errno = 0;
        bool is_wide = length > 18 && (strtoll(text + i, &end, 10), errno == ERANGE) && end == text + i + length;
        if (length == 0) {
            length = in_string && text[i] == '\\' && i + 1 < n ? 2 : 1;
            in_string ^= text[i] == '"';
        }
        memcpy(out + at, text + i, length);
        memcpy(out + at + length, ".0", 2);
        at += length + (is_wide ? 2 : 0);
    }
    return at;
}

/* Whether a text has too many values, by what stands between them; where, if so. */
static bool has_too_many_values(const char *text, size_t n, json_error_t *error)
{
    size_t n_value = 1, line_begin = 0;
    bool in_string = false;
    *error = (json_error_t){.line = 1};
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"')
            in_string = !in_string;
        else if (in_string)
            i += text[i] == '\\';
        else if (text[i] == ',' || text[i] == '[' || text[i] == '{')
            n_value++;
        if (n_value > JSON_MAX_VALUES) {
            error->column = (int)(i - line_begin + 1);
            snprintf(error->text, sizeof error->text, "more than %d values", JSON_MAX_VALUES);
            return true;
        }
        if (i < n && text[i] == '\n') {
            error->line++;
            line_begin = i + 1;
        }
    }
    return false;
}

json_t *json_read(const char *text, size_t n, size_t flags, json_error_t *error)
{
    if (has_too_many_values(text, n, error))
        return NULL;
    json_t *j = json_loadb(text, n, flags, error);
    char *wide = !j && json_error_code(error) == json_error_numeric_overflow ? mem_alloc(3 * n + 3) : NULL;
    if (wide) {                        /* a number as other readers of JSON have it, too, and no error */
        char *copy = wide + 2 * n + 2; /* ended by NUL, and behind what is written of it */
        memcpy(copy, text, n);
        copy[n] = '\0';
        n = widen_integers(copy, n, wide);
        text = wide;
    }
    j = j ? j : json_loadb(text, n, flags, error); /* the text may have been blamed for what memory lacked */
    mem_free(wide);
    return j;
}
