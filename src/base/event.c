#define _GNU_SOURCE
#include "base/event.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { NS_PER_S = 1000 * 1000 * 1000 };

void event_wake(struct event *ev)
{
    if (atomic_load(&ev->sleepers))
        syscall(SYS_futex, &ev->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

int64_t event_wait(struct event *ev, unsigned seen, int n_spin, int64_t max_ns)
{
    for (int i = 0; i < n_spin; i++) {
        if (atomic_load_explicit(&ev->value, memory_order_acquire) != seen)
            return 0;
        cpu_relax();
    }
    int64_t begin_ns = clock_ns(), slept_ns = 0;
    atomic_fetch_add(&ev->sleepers, 1);
    while (atomic_load(&ev->value) == seen && (max_ns == 0 || slept_ns < max_ns)) {
        int64_t left_ns = max_ns - slept_ns;
        const struct timespec t = {left_ns / NS_PER_S, left_ns % NS_PER_S};
        syscall(SYS_futex, &ev->value, FUTEX_WAIT_PRIVATE, seen, max_ns ? &t : NULL, NULL, 0);
        slept_ns = clock_ns() - begin_ns;
    }
    atomic_fetch_sub(&ev->sleepers, 1);
    return slept_ns;
}
