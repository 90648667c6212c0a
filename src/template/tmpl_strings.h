/* String functions that filters and methods of templates share. Those with argv have the signature of struct function's
 * `run`; they convert a value that is no string with str(). */
#ifndef TEMPLATE_TMPL_STRINGS_H
#define TEMPLATE_TMPL_STRINGS_H

#include "template/tmpl_value.h"

/* Gets an argument as a string or an integer; false, and a failure, if it is none. */
bool arg_text(struct render *r, struct value v, struct span *out);
bool arg_int(struct render *r, struct value v, int64_t otherwise, int64_t *out); /* otherwise: if not given */
bool arg_is_given(struct value v);                                               /* given and not None */

/* Takes the first character off a text, and charges a step for it; false: none is left, or the rendering has failed.
 * All code that goes through the characters of a text must use these functions. */
bool text_take_first(struct render *r, struct span *s, uint32_t *code);
struct span text_lstrip_space(struct render *r, struct span s);
struct span text_rstrip_space(struct render *r, struct span s);

struct value text_upper(struct render *r, struct value v, const struct value *argv);
struct value text_lower(struct render *r, struct value v, const struct value *argv);
struct value text_capitalize(struct render *r, struct value v, const struct value *argv);
struct value text_strip(struct render *r, struct value v, const struct value *argv);
struct value text_center(struct render *r, struct value v, const struct value *argv);
struct value filter_title(struct render *r, struct value v, const struct value *argv);
struct value filter_replace(struct render *r, struct value v, const struct value *argv);

struct value text_lines(struct render *r, struct span s, bool keep_ends); /* a list */
/* Whether a text has letters of the wanted case (CODE_UPPER or CODE_LOWER), and none of the other. */
bool text_has_case(struct render *r, struct span s, unsigned wanted);

const struct function *find_text_method(struct span name);

#endif
