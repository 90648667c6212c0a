/* What we may do to a terminal: one place decides on style and escape sequences. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* Whether the stream leads to a terminal that knows escape sequences (TERM is set, and not to dumb). */
bool terminal_knows_escapes(FILE *f);

/* Whether what is written to the stream may be styled. `color`: "always", "never", or "auto" (NULL), which means: on a
 * terminal that can, unless NO_COLOR is set (no-color.org). */
bool terminal_has_style(FILE *f, const char *color);

#define COLOR_OPTION(color)                                                                                            \
    {                                                                                                                  \
        "--color", OPT_CHOICE, &(color), "auto|always|never", "dim reasoning and notes (auto: on a terminal)", 0, 0,   \
            "auto|always|never", GROUP_OUTPUT                                                                          \
    }

#endif
