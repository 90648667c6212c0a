#include "grammar/decimal.h"

#include <stdlib.h>
#include <string.h>

/* Digits and the power of ten of the last one; false: too many. */
static bool read_digits(const char *s, char *digits, int *n, long *exponent)
{
    bool point = false;
    *n = 0;
    *exponent = 0;
    for (; *s && *s != 'e' && *s != 'E'; s++) {
        point |= *s == '.';
        if (*s < '0' || *s > '9' || (*n == 0 && *s == '0' && !point))
            continue;
        if (*n == DECIMAL_DIGITS)
            return false;
        digits[(*n)++] = *s;
        *exponent -= point;
    }
    if (*s)
        *exponent += strtol(s + 1, NULL, 10);
    return true;
}

bool decimal_parse(struct decimal *d, const char *text)
{
    char digits[DECIMAL_DIGITS];
    int n, lead = 0;
    long exponent;
    if (!read_digits(text, digits, &n, &exponent))
        return false;
    while (lead < n && digits[lead] == '0')
        lead++;
    while (n > lead && digits[n - 1] == '0') {
        n--;
        exponent++;
    }
    *d = (struct decimal){.negative = *text == '-' && n > lead, .n_int = 1, .digits = "0"};
    if (n == lead)
        return true;
    long n_digit = n - lead, n_int = n_digit + exponent; /* as they stand; n_int may be below 1 */
    long n_frac = exponent < 0 ? -exponent : 0, shown_int = n_int < 1 ? 1 : n_int;
    if (n_frac > DECIMAL_DIGITS || shown_int > DECIMAL_DIGITS || n_frac + shown_int > DECIMAL_DIGITS)
        return false;
    memset(d->digits, '0', sizeof d->digits);
    d->n_int = (uint8_t)shown_int;
    d->n_frac = (uint8_t)n_frac;
    memcpy(d->digits + shown_int - n_int, digits + lead, (size_t)n_digit);
    return true;
}

void decimal_compare_int(struct decimal_compare *c, const struct decimal *bound, char digit)
{
    if (c->n_int == 0)
        c->zero = true;
    c->zero &= digit == '0';
    if (c->n_int > bound->n_int)
        return;
    if (c->n_int < bound->n_int && c->order == 0)
        c->order = (int8_t)((digit > bound->digits[c->n_int]) - (digit < bound->digits[c->n_int]));
    c->n_int++;
}

void decimal_compare_frac(struct decimal_compare *c, const struct decimal *bound, char digit)
{
    c->zero &= digit == '0';
    char other = c->n_frac < bound->n_frac ? bound->digits[bound->n_int + c->n_frac] : '0';
    if (c->order == 0 && c->n_int == bound->n_int)
        c->order = (int8_t)((digit > other) - (digit < other));
    c->n_frac += c->n_frac < bound->n_frac + 2;
}

/* The same of absolute values. */
static unsigned compare_absolute(const struct decimal_compare *c, const struct decimal *bound, bool int_done, bool done)
{
    if (c->n_int > bound->n_int)
        return DECIMAL_GREATER;
    if (!int_done) { /* more digits multiply by ten */
        if (c->n_int < bound->n_int)
            return DECIMAL_LESS | DECIMAL_EQUAL | DECIMAL_GREATER;
        if (c->order > 0)
            return DECIMAL_GREATER;
    } else if (c->n_int < bound->n_int)
        return DECIMAL_LESS;
    unsigned more = int_done ? 0 : DECIMAL_GREATER;
    if (c->order != 0)
        return more | (c->order < 0 ? DECIMAL_LESS : DECIMAL_GREATER);
    bool rest = c->n_frac < bound->n_frac;
    if (done)
        return rest ? DECIMAL_LESS : DECIMAL_EQUAL;
    return more | (rest ? DECIMAL_LESS : 0) | DECIMAL_EQUAL | DECIMAL_GREATER;
}

unsigned decimal_compare_result(const struct decimal_compare *c, const struct decimal *bound, bool negative,
                                bool int_done, bool done)
{
    const unsigned all = DECIMAL_LESS | DECIMAL_EQUAL | DECIMAL_GREATER;
    bool zero_bound = bound->n_int == 1 && bound->n_frac == 0 && bound->digits[0] == '0', no_digit = c->n_int == 0;
    if (no_digit && (!negative || bound->negative))
        return all;
    if (negative && !bound->negative) { /* less, but -0 is 0 */
        bool may_be_zero = zero_bound && (no_digit || c->zero);
        return (may_be_zero ? DECIMAL_EQUAL : 0u) | (may_be_zero && done ? 0u : DECIMAL_LESS);
    }
    unsigned result = compare_absolute(c, bound, int_done, done);
    if (!negative)
        return bound->negative ? DECIMAL_GREATER : result;
    return (result & DECIMAL_EQUAL) | (result & DECIMAL_LESS ? DECIMAL_GREATER : 0u) |
           (result & DECIMAL_GREATER ? DECIMAL_LESS : 0u);
}
