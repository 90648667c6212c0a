#define _POSIX_C_SOURCE 200809L
#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool terminal_knows_escapes(FILE *f)
{
    const char *term = getenv("TERM");
    return isatty(fileno(f)) && term && *term && strcmp(term, "dumb") != 0;
}

bool terminal_has_style(FILE *f, const char *color)
{
    const char *no_color = getenv("NO_COLOR");
    if (color && strcmp(color, "auto") != 0)
        return !strcmp(color, "always");
    return terminal_knows_escapes(f) && !(no_color && *no_color);
}
