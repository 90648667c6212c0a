/* Chat templates: the Jinja that GGUF files carry in tokenizer.chat_template, rendered to text.
 *
 * The result equals, byte for byte, that of Python's jinja2 as Hugging Face sets it up for chat templates: sandboxed
 * and immutable, trim_blocks and lstrip_blocks, loop controls, generation blocks, raise_exception, strftime_now, and a
 * tojson that leaves non-ASCII characters alone. Not part of it: other templates (include, import, extends), Python's
 * integers beyond 64 bits, and filters that need a web page or chance (urlize, xmlattr, random).
 *
 * Templates come with models and may be hostile: length, nesting, steps, memory and output are bounded, and going
 * beyond a bound is an error. Errors name line and column. A parsed template is read-only and may be shared between
 * threads; each rendering has its own memory.
 *
 * A rendering tells of each byte of its text whether it is *trusted*, which is to say: whether it may be part of a
 * special token. Trusted is what stands in the template, between its tags and in its literals, what it is given as text
 * (the model's special tokens), numbers, and the usual names of roles under the key "role". Not trusted are all other
 * strings that come in JSON, and what the interpreter itself writes (brackets, escapes, True). A byte keeps its mark on
 * its way through filters, methods and operators; one that is made of another, as an upper-case letter is, has the mark
 * of that. */
#ifndef TEMPLATE_TEMPLATE_H
#define TEMPLATE_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct template;

/* Parses n bytes of UTF-8. On failure *out is NULL. */
MUST_USE err_code template_parse(struct template **out, const char *source, size_t n, struct err *e);
void template_close(struct template **t);

/* A variable of the template: a JSON document, or text as it is, which is trusted. */
struct template_var {
    const char *name; /* NUL-terminated, as are those below */
    const char *json; /* NULL: `text` */
    const char *text;
};

/* Renders with the given variables; of two with the same name the later one counts. The text is NUL-terminated and
 * owned by the caller (mem_free); trusted[i], 0 or 1, is the mark of text[i] and goes with it. On failure *text is
 * NULL. */
MUST_USE err_code template_render(const struct template *t, const struct template_var *vars, int n_var, char **text,
                                  const char **trusted, size_t *n_text, struct err *e);

#endif
