/* Nondeterministic finite automata over bytes, to which regular expressions and the rules of grammars are compiled. All
 * automata of a grammar are one list of instructions; each begins at an index into it.
 *
 * Characters are UTF-8. A special token is the byte 0xff, which occurs in no character, followed by its text. */
#ifndef GRAMMAR_NFA_H
#define GRAMMAR_NFA_H

#include "base/err.h"
#include "base/utf8.h"
#include "grammar/list.h"

enum {
    NFA_MAX_CODE = 400000, /* instructions of a grammar */
    NFA_TOKEN_MARK = 0xff, /* before a special token's text */
};

enum nfa_op {
    NFA_BYTES,  /* a byte of set a, then instruction b */
    NFA_SPLIT,  /* instruction a or b */
    NFA_CALL,   /* the rule at instruction a, then b */
    NFA_RETURN, /* the end of a rule */
    NFA_JSON,   /* a JSON value of schema a, then instruction b */
    NFA_END,    /* the text may end here */
    NFA_ALL,    /* the text may end here or go on with anything */
    NFA_SEARCH, /* instruction a; or any character, which b reads, and here again */
    NFA_BEGIN,  /* instruction a, at the beginning of the text only */
    NFA_FINISH, /* instruction a, at the end of the text only */
};

struct nfa_instr {
    uint32_t op, a, b;
    uint32_t n_left; /* least number of characters from here to the end; 0 where there are rules */
};

struct byte_set {
    uint64_t bits[4];
};
static inline bool byte_set_has(const struct byte_set *s, uint8_t byte)
{
    return s->bits[byte >> 6] >> (byte & 63) & 1;
}

struct nfa {
    LIST(struct nfa_instr) code;
    LIST(struct byte_set) sets;
};

/* ---- expressions, which automata are made from ------------------------------------------------------------------- */

enum expr_kind {
    EXPR_BYTES,  /* the n bytes of `text` from `first` on; n 0: the empty text */
    EXPR_CLASS,  /* a character of the n ranges from `first` on */
    EXPR_CAT,    /* the n nodes in `kids` from `first` on, one after the other */
    EXPR_OR,     /* one of the n nodes in `kids` from `first` on */
    EXPR_REPEAT, /* node `first`, min to max times */
    EXPR_BEGIN,
    EXPR_FINISH,
    EXPR_RULE, /* rule `first` */
    EXPR_JSON, /* schema `first` */
};
/* Reads a number from the digits at s[*at] of n bytes; false: there are none. Numbers beyond EXPR_MAX_REPEAT are only
 * known to be larger than that. */
bool expr_read_count(const char *s, size_t n, size_t *at, uint32_t *count);
enum { EXPR_MANY = UINT32_MAX /* as `max` of EXPR_REPEAT: no limit */, EXPR_MAX_REPEAT = 100000 };

struct expr {
    enum expr_kind kind;
    uint32_t first, n, min, max;
};

struct char_range {
    uint32_t lo, hi;
};

struct exprs {
    LIST(struct expr) nodes;
    LIST(uint32_t) kids;
    LIST(struct char_range) ranges;
    LIST(char) text;
    uint32_t n_failed; /* how often memory ran out */
};

void exprs_close(struct exprs *x);
/* Each of these adds a node and returns its number. Arguments are copied. */
uint32_t expr_bytes(struct exprs *x, const char *bytes, uint32_t n);
uint32_t expr_class(struct exprs *x, struct char_range *ranges, uint32_t n, bool negated); /* overwrites the ranges */
uint32_t expr_list(struct exprs *x, enum expr_kind kind, const uint32_t *kids, uint32_t n);
uint32_t expr_node(struct exprs *x, enum expr_kind kind, uint32_t first, uint32_t min, uint32_t max);

/* Adds the instructions of a node, which continue at `next`; *begin is set to the first one. rules: the first
 * instruction of each rule. */
MUST_USE err_code nfa_emit(struct nfa *a, const struct exprs *x, uint32_t node, const uint32_t *rules, uint32_t next,
                           uint32_t *begin, struct err *e);
/* Adds an instruction and returns its index; INTERN_NONE: no memory, or there are NFA_MAX_CODE. */
uint32_t nfa_add(struct nfa *a, enum nfa_op op, uint32_t x, uint32_t y, uint32_t n_left);
/* The error after nfa_add has failed. */
err_code nfa_full(const struct nfa *a, struct err *e);
void nfa_close(struct nfa *a);

/* The code point at s, where n > 0 bytes of any kind are; *length is set to its bytes, 1 to 4. A byte that begins no
 * character counts alone, as NFA_NO_CHAR. */
enum { NFA_NO_CHAR = UTF8_MAX_CODE + 1 };
uint32_t nfa_read_char(const char *s, size_t n, unsigned *length);

/* The value of a hexadecimal digit, or -1. */
static inline int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
