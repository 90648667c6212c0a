/* An event counter that threads wait on: they spin for a while and then sleep (a futex). */
#ifndef BASE_EVENT_H
#define BASE_EVENT_H

#include <stdatomic.h>
#include <stdint.h>

/* Starts as zeros. */
struct event {
    atomic_uint value;
    atomic_uint sleepers; /* threads that sleep: where there are none, waking needs no system call */
};

/* A short pause between two reads of a word in a spin loop. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* waits about as long; `yield` doesn't wait at all on most processors */
#endif
}

/* Wakes the threads that sleep. To be called after the value has changed. */
void event_wake(struct event *ev);

/* Changes the value and wakes the waiting threads. */
static inline void event_signal(struct event *ev)
{
    atomic_fetch_add(&ev->value, 1);
    event_wake(ev);
}

/* Waits until the value is no longer `seen`: spins n_spin rounds, then sleeps in the kernel for max_ns at most (0: no
 * limit). Returns the nanoseconds that it slept. */
int64_t event_wait(struct event *ev, unsigned seen, int n_spin, int64_t max_ns);

#endif
