#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef err_set /* err.h wraps them for the analyzer */
#undef err_nomem

err_code err_set(struct err *e, err_code code, const char *fmt, ...)
{
    if (e) {
        va_list args;
        va_start(args, fmt);
        e->code = code;
        vsnprintf(e->text, sizeof e->text, fmt, args);
        va_end(args);
    }
    return code;
}

err_code err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_FAIL;
    char prefix[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(prefix, sizeof prefix - 2, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof prefix - 2)
        return e->code;
    memcpy(prefix + n, ": ", 2);
    size_t shift = (size_t)n + 2, kept = strlen(e->text);
    if (kept > sizeof e->text - 1 - shift) /* the end of a long sentence gives way */
        kept = sizeof e->text - 1 - shift;
    memmove(e->text + shift, e->text, kept);
    memcpy(e->text, prefix, shift);
    e->text[shift + kept] = '\0';
    return e->code;
}

err_code err_nomem(struct err *e, size_t n_bytes, const char *what)
{
    return err_set(e, ERR_NOMEM, "out of memory: %zu bytes for %s", n_bytes, what);
}

const char *err_code_text(err_code code)
{
    switch (code) {
#define ERR(name, number, text)                                                                                        \
    case ERR_##name:                                                                                                   \
        return text;
#include "base/err.def"
#undef ERR
    }
    return "unknown error";
}
