/* Quantities as text for people. Sizes are in powers of 1024, as in options. */
#ifndef BASE_UNITS_TEXT_H
#define BASE_UNITS_TEXT_H

#include <stdint.h>

struct units_text {
    char s[32];
};

struct units_text units_size(uint64_t n_bytes);   /* in the largest unit that leaves at least 1: "27.29 MiB" */
struct units_text units_figure(double x);         /* three digits, or those before the point: "4.99", "12346" */
struct units_text units_duration(double seconds); /* "48 s", "12 min 48 s", "3 h 5 min" */

#endif
