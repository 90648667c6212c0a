#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"

#include <time.h>

enum { NS_PER_S = 1000000000 };

static int64_t read_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t clock_thread_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

void clock_sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){ns / NS_PER_S, ns % NS_PER_S}, NULL);
}
