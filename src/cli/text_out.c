#define _POSIX_C_SOURCE 200809L
#include "cli/text_out.h"

#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "base/utf8.h"

void text_out_open(struct text_out *t, FILE *stream, bool raw)
{
    *t = (struct text_out){.stream = stream, .is_raw = raw || !isatty(fileno(stream))};
}

/* Writes the whole characters in `part`; an incomplete one at its end stays. */
static void show(struct text_out *t, bool is_end)
{
    while (t->n_part && (is_end || utf8_unfinished(t->part, t->n_part) < t->n_part)) {
        struct printable p = printable_next(t->part, t->n_part);
        char blank[2] = {*t->part, 0};
        const char *shown = *t->part == '\n' || *t->part == '\t' ? blank : p.shown;
        if (t->terminal)
            terminal_text_put(t->terminal, shown);
        else
            fputs(shown, t->stream);
        t->n_part -= p.n_bytes;
        memmove(t->part, t->part + p.n_bytes, t->n_part);
    }
}

void text_out_write(struct text_out *t, const char *s, size_t n)
{
    if (t->is_raw)
        fwrite(s, 1, n, t->stream);
    for (size_t i = 0; i < n && !t->is_raw; i++) {
        t->part[t->n_part++] = s[i];
        show(t, false);
    }
}

void text_out_end(struct text_out *t)
{
    show(t, true);
}
