/* Decimal numbers as JSON writes them, of any length: comparing them with bounds while their digits are read. */
#ifndef GRAMMAR_DECIMAL_H
#define GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DECIMAL_DIGITS = 60 }; /* most digits of a bound, before and after the point together */

/* A bound: digits without leading zeros (except "0" before the point) and without trailing zeros after the point. */
struct decimal {
    bool negative;         /* false for zero */
    uint8_t n_int, n_frac; /* digits before and after the point */
    char digits[DECIMAL_DIGITS];
};

/* Parses a JSON number, with an exponent or without. False: it has too many digits. */
bool decimal_parse(struct decimal *d, const char *text);

/* How the digits read so far compare with those of a bound. Starts as zeros. */
struct decimal_compare {
    uint8_t n_int;  /* digits before the point; stops at one more than the bound has */
    uint8_t n_frac; /* digits after the point; stops at two more than the bound has */
    int8_t order;   /* comparison of the digits themselves: -1: less than the bound's, 0: equal, 1: greater */
    bool zero;      /* all digits were 0 */
};
void decimal_compare_int(struct decimal_compare *c, const struct decimal *bound, char digit);
void decimal_compare_frac(struct decimal_compare *c, const struct decimal *bound, char digit);

enum { DECIMAL_LESS = 1, DECIMAL_EQUAL = 2, DECIMAL_GREATER = 4 };
/* Which of these the number may still turn out to be. int_done: no more digits can come before the point; done: no more
 * digits can come at all. */
unsigned decimal_compare_result(const struct decimal_compare *c, const struct decimal *bound, bool negative,
                                bool int_done, bool done);

#endif
