/* Texts in templates: what filters and methods share. Those with argv have the form of a `struct function`; a value
 * that is not a text is one by str(). */
#ifndef TEMPLATE_TMPL_STRINGS_H
#define TEMPLATE_TMPL_STRINGS_H

#include "template/tmpl_value.h"

/* An argument as a text or an integer; false and a failure when it is not. */
bool arg_text(struct render *r, struct value v, struct span *out);
bool arg_int(struct render *r, struct value v, int64_t otherwise, int64_t *out); /* otherwise: when not given */
bool arg_is_given(struct value v);                                               /* and not None */

/* Takes a character off an end of a text, and charges for it; false when there is none left or after a failure. All
 * that goes through the characters of a text does so with these. */
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
/* CODE_UPPER or CODE_LOWER: has it, and none of the other */
bool text_has_case(struct render *r, struct span s, unsigned wanted);

const struct function *find_text_method(struct span name);

#endif
