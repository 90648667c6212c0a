/* Text as JSON. */
#ifndef CLI_JSON_TEXT_H
#define CLI_JSON_TEXT_H

#include <jansson.h>

/* A string of n bytes of text. Each byte that belongs to no character, as where an answer was cut within one, becomes
 * U+FFFD. NULL: there is no memory. */
json_t *json_text(const char *text, size_t n);

#endif
