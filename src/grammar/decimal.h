/* Decimal numbers as JSON writes them, without limits on size: comparing and dividing them while their digits come. */
#ifndef GRAMMAR_DECIMAL_H
#define GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DECIMAL_DIGITS = 60 }; /* of a bound, before and behind the point together */

/* A bound: digits without leading zeros (but "0" before the point) and without trailing ones behind it. */
struct decimal {
    bool negative; /* never of zero */
    uint8_t n_int, n_frac;
    char digits[DECIMAL_DIGITS];
};

/* From a JSON number, with exponent or without. False: it has too many digits. */
bool decimal_parse(struct decimal *d, const char *text);

/* How the digits that were read so far compare with a bound's. Zeros: none were read. */
struct decimal_compare {
    uint8_t n_int;  /* digits before the point, at most one more than the bound has */
    uint8_t n_frac; /* digits behind the point, at most two more than the bound has */
    int8_t order;   /* of the digits themselves: -1: less than the bound's, 0, 1 */
    bool zero;      /* all digits were 0 */
};
void decimal_compare_int(struct decimal_compare *c, const struct decimal *bound, char digit);
void decimal_compare_frac(struct decimal_compare *c, const struct decimal *bound, char digit);

enum { DECIMAL_LESS = 1, DECIMAL_EQUAL = 2, DECIMAL_GREATER = 4 };
/* Which of them the number may be: all of them at the start. `int_done`, `done`: no digits can follow before the point,
 * or at all. */
unsigned decimal_compare_result(const struct decimal_compare *c, const struct decimal *bound, bool negative,
                                bool int_done, bool done);

#endif
