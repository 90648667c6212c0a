/* Monotonic time, and sleeping. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void);        /* since some fixed time in the past */
int64_t clock_thread_ns(void); /* processor time that the calling thread has used */
void clock_sleep_ns(int64_t ns);

#endif
