/* The states in which a text that follows a grammar can be. They are computed when they are first needed and kept,
 * together with the transitions that bytes make.
 *
 * A state is a list of words, identified by a number; 0 means no state. JSON nests without ambiguity, so a position
 * within a JSON value is a stack of states, one for each open value. The state of an object says which of its names
 * were seen and what the schemas still ask for, but nothing about the values around it or about the value of its open
 * property. Outside of JSON values (rules, regular expressions) one state stands for all ways to read the text.
 *
 * A value's state has roots: formulas, one for each schema whose verdict the enclosing value waits for. Their variables
 * are conditions (program.h), each with a word for its progress; conditions that are decided are removed from the
 * formulas. `goal` is a formula over the roots that the enclosing values need, and that must stay possible.
 *
 * Counts of characters, items and properties, and positions in the tree of an object's names, would make too many
 * states. They are kept in a register beside the state. A count's variable only says between which of its bounds the
 * register is; the state's `threshold` is the register's value at which that changes.
 *
 * When memory or the number of states runs out, `failed` is set and nothing is allowed any more. The states are dropped
 * then, and texts that are still being read build new ones (matcher.c); only a text that needs too many by itself
 * fails. */
#ifndef GRAMMAR_STATES_H
#define GRAMMAR_STATES_H

#include "grammar/formula.h"
#include "grammar/program.h"

enum {
    STATES_MAX = 2000000,         /* states of a grammar, by default */
    STATES_MAX_BYTES = 512 << 20, /* memory of a grammar's states */
    STATES_MAX_CLOSURE = 4096,    /* instructions that a text outside of JSON can be at, at once */
};

enum state_kind {
    STATE_NONE,
    STATE_RESULT,  /* verdicts on a value that has ended: a word for each root */
    STATE_TEXT,    /* outside of JSON: pairs of an instruction and a STATE_RULE, sorted */
    STATE_RULE,    /* a rule that was called: pairs of the instruction to return to and the STATE_RULE around it */
    STATE_AFTER,   /* waits for a JSON value: the instruction to continue at, and the STATE_RULE around it */
    STATE_VALUE,   /* before a value; its roots are schemas */
    STATE_LITERAL, /* in null, true, false: [kind and place, result] */
    STATE_STRING,
    STATE_NUMBER,
    STATE_ARRAY,
    STATE_OBJECT,
    STATE_NAME, /* in a property's name */
};

enum state_op {
    STATE_REFUSE,
    STATE_STAY, /* `next` replaces the state */
    STATE_PUSH, /* `next` replaces the state, and `child` is pushed onto the stack */
    STATE_POP,  /* the value has ended with the verdicts `next`; the state is popped */
};
enum {
    STATE_COUNT = 1,  /* the register of the state that stays is increased by one */
    STATE_UNREAD = 2, /* the byte was not consumed: the state that is on top then gets it */
    STATE_SPACE = 4,  /* the byte was white space between parts of JSON */
};
struct state_out {
    uint8_t op, flags;
    uint32_t next, child;
};

enum { TEXT_ENDS = 1, TEXT_HAS_BYTES = 2, TEXT_HAS_JSON = 4, TEXT_TAKES_ALL = 8 };
enum { NO_THRESHOLD = UINT32_MAX };

struct state_record {
    uint8_t kind, flags;      /* enum state_kind; flags of TEXT, or of NUMBER whether it can end well, if known */
    bool free_chars;          /* STRING, NAME: any further characters are allowed, up to `limit` in all */
    uint16_t n_step;          /* how often states_step was called for it, up to a limit */
    uint32_t threshold;       /* the register's value at which the state changes */
    uint32_t limit, n_left;   /* STRING: most characters in all, and least number of characters still to come */
    struct state_out *row;    /* [256] transitions, for states that are often asked; owned */
    struct names_info *names; /* OBJECT: names that are allowed; owned */
    void *mask;               /* STRING: data of mask.c; owned, mask_close frees it */
};

struct memo_entry {
    uint64_t key;
    struct state_out out;
};

struct shape;

/* A call of the rule at instruction `target`, which returns to `ret` in the STATE_RULE `rule`. */
struct text_call {
    uint32_t target, ret, rule;
};

struct states {
    const struct program *p;
    uint32_t max;   /* most states */
    uint32_t n_use; /* reference count: the grammar and its matchers */
    struct intern contents;
    LIST(struct state_record) records; /* [number of states] */
    struct formulas formulas;
    uint32_t *schema_formulas; /* [schemas][N_KIND]: number + 1 */
    struct memo_entry *memo;   /* [memo_size], a power of two; a hash table of transitions */
    size_t n_memo, memo_size;
    LIST(struct shape *) shapes; /* sets of names that objects know; owned; number 0 is none */
    struct intern shape_keys;
    uint32_t start;
    size_t n_bytes;  /* memory of rows, names_info and masks */
    err_code failed; /* ERR_OK: not yet; read by states_good */

    uint64_t seen_keys[2 * STATES_MAX_CLOSURE]; /* hash set for computing one closure */
    uint32_t seen_stamp[2 * STATES_MAX_CLOSURE], stamp, n_seen;
    LIST(uint64_t) todo, items;
    LIST(struct text_call) calls;
    uint8_t *finish;        /* [instructions] whether the text may end there (states_text.c); NULL: none is known yet */
    LIST(uint32_t) reached; /* instructions reached while one of `finish` is computed */
};

/* Whether nothing has failed so far. */
static inline bool states_good(struct states *s)
{
    if (s->formulas.failed && s->failed == ERR_OK)
        s->failed = ERR_NOMEM;
    return s->failed == ERR_OK;
}

/* Opens states with a reference count of 1. */
MUST_USE err_code states_open(struct states **s, const struct program *p, uint32_t max, struct err *e);
struct states *states_share(struct states *s); /* adds a reference */
void states_close(struct states **s);          /* drops one; the last one frees them. Accepts a pointer to NULL */

static inline enum state_kind state_kind(const struct states *s, uint32_t state)
{
    return (enum state_kind)s->records.at[state].kind;
}

/* The transition of a byte. Not for STATE_NAME, where it depends on the register, too (states_step_name). */
struct state_out states_step(struct states *s, uint32_t state, uint8_t byte);
/* The transition that the verdicts on a value make in the state below it. */
struct state_out states_after(struct states *s, uint32_t state, uint32_t result);
/* The state that follows when the register has reached the threshold; 0: refused. */
uint32_t states_bump(struct states *s, uint32_t state);
/* The state for both of two ways to read the text; either may be 0. */
uint32_t states_union(struct states *s, uint32_t a, uint32_t b);
/* The transition of a byte in STATE_NAME. *node is the register: the position in the tree of names, or TREE_NONE. */
struct state_out states_step_name(struct states *s, uint32_t state, uint32_t *node, uint8_t byte);

/* The i-th way in which a STATE_TEXT goes on with a JSON value: sets the state of the value, and the one below it.
 * False: there are no more. */
bool states_json(struct states *s, uint32_t text, uint32_t i, uint32_t *value, uint32_t *below);
/* Whether a value may end without a closing byte, as only numbers do; *result is set to its verdicts. */
bool states_may_end(struct states *s, uint32_t state, uint32_t *result);

void mask_close(void *mask);
err_code states_error(const struct states *s, struct err *e);
size_t states_bytes(const struct states *s);

#endif
