#include "base/throttle.h"

/* Of a stretch: loops that are counted when they end may have begun before it. */
static int64_t loops_took_ns(const struct throttle *c, const struct throttle_clock *now)
{
    int64_t loop_ns = now->loop_ns - c->begin.loop_ns, all_ns = now->now_ns - c->begin.now_ns;
    return loop_ns < all_ns ? loop_ns : all_ns;
}

/* Bursts are shorter than schedulers' slices (1 ms and more). A thread gets less than half of its core, 5 parts of 12,
 * so that it never is ahead of its share. Whether the other program is still there is seen by working without rests for
 * several slices, after an eighth of a second and then ever less often, up to once a second. */
enum { BURST_NS = 500000, LOOK_NS = 32000000, RUN = 5, OF = 12, MOST_REST_NS = 10000000 };
enum { LEAST_TERM_NS = 125000000, MOST_TERM_NS = 1000000000 };

bool throttle_is_due(const struct throttle *c, const struct throttle_clock *now)
{
    if (c->begin.now_ns == 0)
        return true;
    if (c->rests_until_ns)
        return now->now_ns - c->begin.now_ns >= BURST_NS;
    return loops_took_ns(c, now) >= LOOK_NS;
}

/* A burst has ended: how long to sleep. */
static int64_t end_burst(struct throttle *c, const struct throttle_clock *now)
{
    int64_t run_ns = now->run_ns - c->begin.run_ns, away_ns = now->now_ns - c->begin.now_ns - run_ns;
    int64_t rest_ns = run_ns * (OF - RUN) / RUN - away_ns; /* it may have been away already */
    if (now->now_ns >= c->rests_until_ns)
        c->rests_until_ns = 0;
    return rest_ns < 0 ? 0 : rest_ns < MOST_REST_NS ? rest_ns : MOST_REST_NS;
}

/* A stretch without rests has ended: whether it takes any from now on. */
static void end_look(struct throttle *c, const struct throttle_clock *now)
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
    c->rests_until_ns = c->term_ns ? now->now_ns + c->term_ns : 0;
}

int64_t throttle_rest_ns(struct throttle *c, const struct throttle_clock *now)
{
    int64_t rest_ns = 0;
    if (c->rests_until_ns)
        rest_ns = end_burst(c, now);
    else if (c->begin.now_ns)
        end_look(c, now);
    c->begin = *now;
    c->begin.now_ns += rest_ns;
    c->slept_ns = 0;
    return rest_ns;
}
