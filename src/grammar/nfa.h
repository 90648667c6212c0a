/* Nondeterministic automata over bytes: what regular expressions and the rules of grammars become. They are one program
 * of instructions; each place where reading may begin is an index into it.
 *
 * Characters are UTF-8. Special tokens are a byte 0xff, which is in no character, and their text. */
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
    NFA_BYTES,  /* a byte of set a, then b */
    NFA_SPLIT,  /* a or b */
    NFA_CALL,   /* rule a, then b */
    NFA_RETURN, /* a rule's end */
    NFA_JSON,   /* a JSON value of schema a, then b */
    NFA_END,    /* the text may end here */
    NFA_ALL,    /* the text may end here or go on with anything */
    NFA_SEARCH, /* a, or any character and here again, through b */
    NFA_BEGIN,  /* a, at the text's begin only */
    NFA_FINISH, /* a, at the text's end only */
};

struct nfa_instr {
    uint32_t op, a, b;
    uint32_t n_left; /* the fewest characters from here to the end; 0 where there are rules */
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

/* ---- what it is made of ---------------------------------------------------------------------------------------- */

enum expr_kind {
    EXPR_BYTES,  /* the n bytes of text from `first` on; none: nothing */
    EXPR_CLASS,  /* a character of the n ranges from `first` on */
    EXPR_CAT,    /* the n nodes that kids from `first` on name, in a row */
    EXPR_OR,     /* one of them */
    EXPR_REPEAT, /* node `first`, min to max times */
    EXPR_BEGIN,
    EXPR_FINISH,
    EXPR_RULE, /* rule `first` */
    EXPR_JSON, /* schema `first` */
};
/* Reads digits at s[*at] of n bytes; false: there are none. Beyond EXPR_MAX_REPEAT the number is any larger one. */
bool expr_read_count(const char *s, size_t n, size_t *at, uint32_t *count);
enum { EXPR_MANY = UINT32_MAX /* of REPEAT's max: any number */, EXPR_MAX_REPEAT = 100000 };

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
    uint32_t n_failed; /* how often there was no memory */
};

void exprs_close(struct exprs *x);
/* Each returns the new node's number. What they are given is copied. */
uint32_t expr_bytes(struct exprs *x, const char *bytes, uint32_t n);
uint32_t expr_class(struct exprs *x, struct char_range *ranges, uint32_t n, bool negated); /* changes the ranges */
uint32_t expr_list(struct exprs *x, enum expr_kind kind, const uint32_t *kids, uint32_t n);
uint32_t expr_node(struct exprs *x, enum expr_kind kind, uint32_t first, uint32_t min, uint32_t max);

/* Adds the instructions of a node that go on at `next`, and gives where they begin. rules [n]: where each begins. */
MUST_USE err_code nfa_emit(struct nfa *a, const struct exprs *x, uint32_t node, const uint32_t *rules, uint32_t next,
                           uint32_t *begin, struct err *e);
/* One instruction; INTERN_NONE: no memory, or NFA_MAX_CODE, which nfa_full tells. */
uint32_t nfa_add(struct nfa *a, enum nfa_op op, uint32_t x, uint32_t y, uint32_t n_left);
err_code nfa_full(const struct nfa *a, struct err *e);
void nfa_close(struct nfa *a);

/* The code point at s, of n > 0 bytes that may be anything; a byte that begins no character is NFA_NO_CHAR, alone.
 * *length: 1 to 4. */
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
