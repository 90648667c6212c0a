/* Chat templates: the Jinja that GGUF files carry in tokenizer.chat_template, rendered to text.
 *
 * The output equals, byte for byte, that of Python's jinja2 as Hugging Face configures it for chat templates: sandboxed
 * and immutable, trim_blocks and lstrip_blocks, loop controls, generation blocks, raise_exception, strftime_now, and a
 * tojson that does not escape non-ASCII characters. Not supported: other templates (include, import, extends), integers
 * beyond 64 bits, and filters for web pages or of chance (urlize, xmlattr, random).
 *
 * Templates come with models and may be hostile: length, nesting, steps, memory and output are bounded, and exceeding a
 * bound is an error. Errors name line and column. A parsed template is read-only and may be shared between threads;
 * each rendering has its own memory.
 *
 * Each byte of the output is marked as *trusted* or not: only trusted bytes may be part of a special token. Trusted are
 * the template's own text and literals, variables given as text (the model's special tokens), numbers, and the usual
 * names of roles under the key "role". All other strings from JSON are not trusted, nor is what the interpreter itself
 * writes (brackets, escapes, True). Filters, methods and operators keep the mark of each byte; a byte that is derived
 * from another, such as an upper-case letter, has the mark of that byte. */
#ifndef TEMPLATE_TEMPLATE_H
#define TEMPLATE_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct template;

/* Parses n bytes of UTF-8. On failure *out is NULL. */
MUST_USE err_code template_parse(struct template **out, const char *source, size_t n, struct err *e);
void template_close(struct template **t);

/* A variable of the template: a JSON document, or a text, which is trusted. */
struct template_var {
    const char *name; /* NUL-terminated, as are those below */
    const char *json; /* NULL: the value is `text` */
    const char *text;
};

/* Renders with the given variables; of two with the same name the later one counts. The text is NUL-terminated and
 * owned by the caller (mem_free). (*trusted)[i], 0 or 1, is the mark of (*text)[i]; it is freed together with the text.
 * On failure *text is NULL. */
MUST_USE err_code template_render(const struct template *t, const struct template_var *vars, int n_var, char **text,
                                  const char **trusted, size_t *n_text, struct err *e);

#endif
