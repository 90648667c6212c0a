/* What a text that follows a grammar may be in the middle of: states, made when they are first met and kept, with what
 * each byte leads to.
 *
 * A state is a list of words, known by a number; the state 0 is none. JSON nests without ambiguity, so that a text
 * within a JSON value is a stack of states, one for each value that is open: the state of an object says which of its
 * names were seen and what the schemas still ask for, but neither what lies around it nor what its open property looks
 * like. What is outside of JSON values (rules, regular expressions) is one state for all ways to read it.
 *
 * A value's state has roots: formulas, one for each schema whose verdict the value around it waits for. Their variables
 * are conditions (program.h), each with a word of its own that says how far it has come; what is decided leaves the
 * formulas. `goal` is a formula over the roots that must stay possible, from what the surroundings need.
 *
 * Counts of characters, items and properties, and places in the tree of an object's names, would make too many states:
 * they are a register beside the state. A count's variable only knows between which of its bounds the register is; the
 * state's `threshold` says when that changes.
 *
 * All fails softly: where memory or the number of states ends, `failed` is set and nothing is allowed any more. Then
 * the states are given up, and the texts that are still read make new ones (matcher.c); one that needs too many
 * alone fails. */
#ifndef GRAMMAR_STATES_H
#define GRAMMAR_STATES_H

#include "grammar/formula.h"
#include "grammar/program.h"

enum {
    STATES_MAX = 2000000,         /* states of a grammar, unless it says otherwise */
    STATES_MAX_BYTES = 512 << 20, /* memory for them */
    STATES_MAX_CLOSURE = 4096,    /* ways at once to read what is outside of JSON */
};

enum state_kind {
    STATE_NONE,
    STATE_RESULT,  /* verdicts on a value that has ended: a word for each root */
    STATE_TEXT,    /* outside of JSON: pairs of an instruction and a STATE_RULE, sorted */
    STATE_RULE,    /* a rule that was called: pairs of where to go on, and the rule around that */
    STATE_AFTER,   /* below a JSON value: where to go on, and the rule around it */
    STATE_VALUE,   /* before a value; roots are schemas */
    STATE_LITERAL, /* in null, true, false: [kind and place, result] */
    STATE_STRING,
    STATE_NUMBER,
    STATE_ARRAY,
    STATE_OBJECT,
    STATE_NAME, /* in a property's name */
};

enum state_op {
    STATE_REFUSE,
    STATE_STAY, /* `next` takes the state's place */
    STATE_PUSH, /* the same, and `child` is put above it */
    STATE_POP,  /* the value has ended, with the verdicts `next`; it is taken off */
};
enum {
    STATE_COUNT = 1,  /* the register of the state that stays counts one more */
    STATE_UNREAD = 2, /* the byte was not used up: it goes to what is on top then */
    STATE_SPACE = 4,  /* it was white space between parts of JSON */
};
struct state_out {
    uint8_t op, flags;
    uint32_t next, child;
};

enum { TEXT_ENDS = 1, TEXT_HAS_BYTES = 2, TEXT_HAS_JSON = 4, TEXT_TAKES_ALL = 8 };
enum { NO_THRESHOLD = UINT32_MAX };

struct state_record {
    uint8_t kind, flags;      /* flags of TEXT; of NUMBER whether it can end well, if that is known */
    bool free_chars;          /* STRING, NAME: any further characters may come, up to `limit` in all */
    uint16_t n_step;          /* how often it was asked, up to some */
    uint32_t threshold;       /* the register's value at which the state changes */
    uint32_t limit, n_left;   /* STRING: at most so many characters in all; at least so many are still to come */
    struct state_out *row;    /* [256], for states that are often asked; owned */
    struct names_info *names; /* OBJECT: which names may come; owned */
    void *mask;               /* of STRING: mask.c's; owned, mask_close frees it */
};

struct memo_entry {
    uint64_t key;
    struct state_out out;
};

struct shape;

/* A rule that is entered at `target`, to go on at `ret` in the STATE_RULE `rule`. */
struct text_call {
    uint32_t target, ret, rule;
};

struct states {
    const struct program *p;
    uint32_t max;   /* states */
    uint32_t n_use; /* whose they are: the grammar's and matchers' */
    struct intern contents;
    LIST(struct state_record) records; /* [number of states] */
    struct formulas formulas;
    uint32_t *schema_formulas; /* [schemas][N_KIND]: number + 1 */
    struct memo_entry *memo;   /* a power of two */
    size_t n_memo, memo_size;
    LIST(struct shape *) shapes; /* sets of names that objects know; owned; 0: none */
    struct intern shape_keys;
    uint32_t start;
    size_t n_bytes;  /* of rows, names_info and masks */
    err_code failed; /* ERR_OK: not yet; read by states_good */

    uint64_t seen_keys[2 * STATES_MAX_CLOSURE]; /* of a closure */
    uint32_t seen_stamp[2 * STATES_MAX_CLOSURE], stamp, n_seen;
    LIST(uint64_t) todo, items;
    LIST(struct text_call) calls;
    uint8_t *finish;        /* [instructions] whether the text may end there (states_text.c); NULL: not known of any */
    LIST(uint32_t) reached; /* instructions, while one of these is found out */
};

/* Whether nothing has failed so far. */
static inline bool states_good(struct states *s)
{
    if (s->formulas.failed && s->failed == ERR_OK)
        s->failed = ERR_NOMEM;
    return s->failed == ERR_OK;
}

/* Of one user. */
MUST_USE err_code states_open(struct states **s, const struct program *p, uint32_t max, struct err *e);
struct states *states_share(struct states *s); /* one user more */
void states_close(struct states **s);          /* one less; the last one frees them. Accepts a pointer to NULL */

static inline enum state_kind state_kind(const struct states *s, uint32_t state)
{
    return (enum state_kind)s->records.at[state].kind;
}

/* What a byte does in a state; not for STATE_NAME, whose register decides, too. */
struct state_out states_step(struct states *s, uint32_t state, uint8_t byte);
/* What the verdicts on a value do in the state below it. */
struct state_out states_after(struct states *s, uint32_t state, uint32_t result);
/* The state whose register has reached its threshold; 0: refused. */
uint32_t states_bump(struct states *s, uint32_t state);
/* Both ways to read; either may be 0. */
uint32_t states_union(struct states *s, uint32_t a, uint32_t b);
/* STATE_NAME: a byte of a property's name. *node, the register: the place in the tree of names, or TREE_NONE. */
struct state_out states_step_name(struct states *s, uint32_t state, uint32_t *node, uint8_t byte);

/* The items of a STATE_TEXT that are JSON values: fills the state of the value and the one below it, and returns
 * whether there is an i-th. */
bool states_json(struct states *s, uint32_t text, uint32_t i, uint32_t *value, uint32_t *below);
/* Whether a value may end here, as only a number can that has no closing byte; *result: its verdicts. */
bool states_may_end(struct states *s, uint32_t state, uint32_t *result);

void mask_close(void *mask);
err_code states_error(const struct states *s, struct err *e);
size_t states_bytes(const struct states *s);

#endif
