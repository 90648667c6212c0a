/* The state of a JSON value, unpacked into a struct that can be changed, and what the files of states share. */
#ifndef GRAMMAR_STATES_VIEW_H
#define GRAMMAR_STATES_VIEW_H

#include <string.h>

#include "grammar/states.h"

enum { VIEW_ROOTS = 512, VIEW_VARS = 1024, VIEW_EXTRA = 4096 };

struct view_var {
    uint32_t term, state;
};

struct view {
    enum state_kind kind;
    uint32_t phase, goal, n_root, n_var, n_extra;
    uint32_t root[VIEW_ROOTS]; /* formulas; in STATE_VALUE schemas */
    struct view_var var[VIEW_VARS];
    uint32_t extra[VIEW_EXTRA];
};

static inline void view_copy(struct view *to, const struct view *from)
{
    memcpy(to, from, offsetof(struct view, root));
    memcpy(to->root, from->root, from->n_root * sizeof *to->root);
    memcpy(to->var, from->var, from->n_var * sizeof *to->var);
    memcpy(to->extra, from->extra, from->n_extra * sizeof *to->extra);
}

void view_load(const struct states *s, uint32_t state, struct view *v);
uint32_t view_store(struct states *s, const struct view *v); /* the state's number; 0: failed */

enum truth { NO, YES, OPEN /* not decided yet */ };

/* Replaces decided variables in the roots and drops variables that no root has. False: the goal is out of reach. */
bool view_reduce(struct states *s, struct view *v);
/* The same, and stores the state; 0: the goal is out of reach. */
uint32_t view_settle(struct states *s, struct view *v);
/* The verdicts when the value ends here; 0: it may not. */
uint32_t view_end(struct states *s, const struct view *v);
/* The goal with each root replaced by an upper bound of what it can become; `map` gives that of the roots' variables.
 */
uint32_t view_hope(struct states *s, const struct view *v, formula_map_fn *map, void *user);
uint32_t formula_map_true(void *user, uint32_t t); /* a formula_map_fn: any variable can still become true */
/* Whether a formula over roots is true with the verdicts in the words of a STATE_RESULT. */
bool result_holds(struct states *s, const uint32_t *result, uint32_t formula);
/* Sets variables to false: those with broken[i], [n_var]. */
void view_break(struct states *s, struct view *v, const bool *broken);
/* Adds the variables of the roots, in their states before a value's first byte. */
void view_add_vars(struct states *s, struct view *v);

uint32_t state_add(struct states *s, const uint32_t *words, uint32_t n); /* 0: failed */
void states_fail(struct states *s, err_code code);

/* Whether a variable is decided, by the code of the state's kind. at_end: the value ends here. */
enum truth var_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end);

/* ---- states_text.c --------------------------------------------------------------------------------------------- */

uint32_t text_start(struct states *s, uint32_t instr, uint32_t rule, bool at_begin);
struct state_out text_step(struct states *s, uint32_t state, uint8_t byte);
void text_describe(struct states *s, uint32_t state, struct state_record *r);
uint32_t text_n_left(const struct states *s, uint32_t state); /* least number of characters still to come */
bool text_searches(const struct states *s, uint32_t state);   /* it can still match, whatever characters come */

/* ---- states_value.c -------------------------------------------------------------------------------------------- */

/* The formula of a schema for values of a kind. */
uint32_t schema_formula(struct states *s, uint32_t schema, enum json_kind kind);
/* The state before a value of these schemas; 0: no value can reach the goal. */
uint32_t value_state(struct states *s, const uint32_t *schemas, uint32_t n, uint32_t goal);
struct state_out value_step(struct states *s, uint32_t state, uint8_t byte);
struct state_out literal_step(struct states *s, uint32_t state, uint8_t byte);
static inline bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* ---- states_string.c ------------------------------------------------------------------------------------------- */

/* What a byte within a string's quotes does. */
struct lexed {
    uint32_t next;    /* the phase after it; LEX_PLAIN between characters */
    uint8_t bytes[4]; /* [n] bytes of the string's value that it completes */
    unsigned n;
    bool begins, ends; /* a character begins; the string ends */
};
enum { LEX_PLAIN = 0 };
bool lex_string(uint32_t phase, uint8_t byte, struct lexed *out);
/* Whether an unfinished escape can still become a character that fits. try_bytes says whether bytes of a character fit.
 */
typedef bool try_bytes_fn(void *user, const uint8_t *bytes, unsigned n);
bool lex_may_finish(uint32_t phase, try_bytes_fn *try_bytes, void *user);

struct state_out string_step(struct states *s, uint32_t state, uint8_t byte);
void string_feed(struct states *s, struct view *v, const uint8_t *bytes, unsigned n); /* moves the variables on */
void string_describe(struct states *s, uint32_t state, struct state_record *r);

/* ---- states_number.c, states_array.c, states_object.c, states_name.c ------------------------------------------- */

struct state_out number_step(struct states *s, uint32_t state, uint8_t byte);
bool number_end(struct states *s, uint32_t state, uint32_t *result);
enum truth number_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end);

struct state_out array_step(struct states *s, uint32_t state, uint8_t byte);
uint32_t array_after(struct states *s, uint32_t state, uint32_t result);

/* Completes the view of an object that begins, whose variables have been added. False: failed. */
bool object_begin(struct states *s, struct view *v);
struct state_out object_step(struct states *s, uint32_t state, uint8_t byte);
uint32_t object_after(struct states *s, uint32_t state, uint32_t result);
enum truth object_truth(struct states *s, const struct view *v, const struct view_var *var, bool at_end);
void shape_close(struct shape *shape);
void names_info_close(struct names_info *info);
void name_describe(struct states *s, uint32_t state, struct state_record *r);

#endif
