/* A word that threads wait on: they spin for a while, and then sleep. */
#ifndef BASE_EVENT_H
#define BASE_EVENT_H

#include <stdatomic.h>
#include <stdint.h>

/* `sleepers` spares the waker a system call. Starts as zeros. */
struct event {
    atomic_uint value;
    atomic_uint sleepers;
};

/* A pause between two looks at a word. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* waits about as long; `yield` doesn't wait at all on most processors */
#endif
}

/* Wakes those that sleep, after the value has changed. */
void event_wake(struct event *ev);

/* Changes the value, and wakes. */
static inline void event_signal(struct event *ev)
{
    atomic_fetch_add(&ev->value, 1);
    event_wake(ev);
}

/* Waits until the value is no longer `seen`: spins n_spin rounds, then sleeps in the kernel, up to max_ns (0: as long
 * as it takes). Returns how long it slept. */
int64_t event_wait(struct event *ev, unsigned seen, int n_spin, int64_t max_ns);

#endif
