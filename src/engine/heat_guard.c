/* Says when the hardware comes near the temperature at which it throttles: runs become slow then, and nothing else says
 * why. */
#include "base/clock.h"
#include "base/temperature.h"
#include "engine/engine_internal.h"

static const int64_t look_ns = (int64_t)10 * 1000 * 1000 * 1000;
/* Degrees below the limit: where it is said, and where it has cooled down. */
static const double near_c = 3, cool_c = 10;

void engine_heat_guard(moebius_engine *g)
{
    struct heat_guard *h = &g->heat;
    struct temperature t;
    int64_t now_ns = clock_ns();
    if (h->looked_ns && now_ns - h->looked_ns < look_ns)
        return;
    h->looked_ns = now_ns;
    if (!temperature_look(h->root ? h->root : "", &t))
        return;
    double left_c = t.limit_c - t.now_c;
    if (left_c <= near_c && !h->is_told)
        log_line(&g->log, LOG_WARN,
                 "hot: %s is at %.0f of at most %.0f degrees, at which the hardware slows down or switches itself off",
                 t.sensor, t.now_c, t.limit_c);
    h->is_told = left_c <= near_c || (h->is_told && left_c < cool_c);
}
