#include "base/err.h"

#include <stdarg.h>
#include <string.h>

#include "base/printable.h"
#include "base/utf8.h"

#undef err_set /* err.h wraps them for the analyzer */
#undef err_nomem

err_code err_set(struct err *e, err_code code, const char *fmt, ...)
{
    if (e) {
        va_list args;
        va_start(args, fmt);
        e->code = code;
        (void)printable_format(e->text, sizeof e->text, fmt, args);
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
    bool is_whole = printable_format(prefix, sizeof prefix - 2, fmt, args);
    va_end(args);
    if (!is_whole)
        return e->code;
    strcat(prefix, ": ");
    size_t shift = strlen(prefix), kept = strlen(e->text);
    if (kept > sizeof e->text - 1 - shift) { /* the end of a long sentence gives way */
        kept = sizeof e->text - 1 - shift;
        kept -= utf8_unfinished(e->text, kept);
    }
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
