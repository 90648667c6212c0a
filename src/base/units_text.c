#include "base/units_text.h"

#include <stddef.h>
#include <stdio.h>

struct units_text units_size(uint64_t n_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct units_text out;
    double v = (double)n_bytes;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < sizeof units / sizeof *units; u++)
        v /= 1024;
    snprintf(out.s, sizeof out.s, u ? "%.2f %s" : "%.0f %s", v, units[u]);
    return out;
}

struct units_text units_figure(double x)
{
    struct units_text out;
    snprintf(out.s, sizeof out.s, x < 999.5 || x >= 1e15 ? "%.3g" : "%.0f", x);
    return out;
}

struct units_text units_duration(double seconds)
{
    struct units_text out;
    const double most = 1e15; /* no run lasts longer, but an estimate may be absurd */
    long long s = seconds < 0 ? 0 : seconds < most ? (long long)(seconds + 0.5) : (long long)most;
    if (s < 60)
        snprintf(out.s, sizeof out.s, "%lld s", s);
    else if (s < 3600)
        snprintf(out.s, sizeof out.s, "%lld min %lld s", s / 60, s % 60);
    else
        snprintf(out.s, sizeof out.s, "%lld h %lld min", s / 3600, s % 3600 / 60);
    return out;
}
