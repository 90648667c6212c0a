#include "base/throttle.h"

/* The time of loops in the interval. Loops are counted when they end, so that one may have begun before it. */
static int64_t loops_took_ns(const struct throttle *c, const struct throttle_clock *now)
{
    int64_t loop_ns = now->loop_ns - c->begin.loop_ns, all_ns = now->now_ns - c->begin.now_ns;
    return loop_ns < all_ns ? loop_ns : all_ns;
}

/* Bursts are shorter than schedulers' time slices (1 ms and more). A throttled thread takes less than half of its core,
 * 5 parts of 12, so that it never has more than its share. It is checked whether the other program is still there by
 * not throttling for several slices: after an eighth of a second, and then less and less often, up to once a second. */
enum { BURST_NS = 500000, CHECK_NS = 32000000, RUN = 5, OF = 12, MOST_SLEEP_NS = 10000000 };
enum { LEAST_TERM_NS = 125000000, MOST_TERM_NS = 1000000000 };

bool throttle_is_due(const struct throttle *c, const struct throttle_clock *now)
{
    if (c->begin.now_ns == 0)
        return true;
    if (c->throttled_until_ns)
        return now->now_ns - c->begin.now_ns >= BURST_NS;
    return loops_took_ns(c, now) >= CHECK_NS;
}

/* Ends a burst: how long to sleep. */
static int64_t end_burst(struct throttle *c, const struct throttle_clock *now)
{
    int64_t run_ns = now->run_ns - c->begin.run_ns, away_ns = now->now_ns - c->begin.now_ns - run_ns;
    int64_t sleep_ns = run_ns * (OF - RUN) / RUN - away_ns; /* the thread may have lost its core already */
    if (now->now_ns >= c->throttled_until_ns)
        c->throttled_until_ns = 0;
    return sleep_ns < 0 ? 0 : sleep_ns < MOST_SLEEP_NS ? sleep_ns : MOST_SLEEP_NS;
}

/* Ends a check: whether the thread is throttled from now on. One check that finds a loss may have met a moment's. */
static void end_check(struct throttle *c, const struct throttle_clock *now)
{
    int64_t loop_ns = loops_took_ns(c, now), lost_ns = loop_ns - (now->run_ns - c->begin.run_ns) - c->slept_ns;
    bool loses = lost_ns > loop_ns / 3;
    if (!loses || !c->has_lost)
        c->term_ns = 0;
    else if (c->term_ns == 0)
        c->term_ns = LEAST_TERM_NS;
    else if (c->term_ns < MOST_TERM_NS)
        c->term_ns *= 2;
    c->has_lost = loses;
    c->throttled_until_ns = c->term_ns ? now->now_ns + c->term_ns : 0;
}

int64_t throttle_sleep_ns(struct throttle *c, const struct throttle_clock *now)
{
    int64_t sleep_ns = 0;
    if (c->throttled_until_ns)
        sleep_ns = end_burst(c, now);
    else if (c->begin.now_ns)
        end_check(c, now);
    c->begin = *now;
    c->begin.now_ns += sleep_ns;
    c->slept_ns = 0;
    return sleep_ns;
}
