#include "engine/stage_choice.h"

#include <math.h>

#include "base/mem.h"

struct gpu_need stage_need(const struct stage_facts *f, int64_t first, int64_t end)
{
    struct gpu_need n = {.layers = (first == 0 ? f->input : 0) + (end == f->n_layer ? f->output : 0)};
    for (int64_t i = first; i < end; i++) {
        const struct stage_layer *y = &f->layers[i];
        n.layers += y->weights;
        n.all_experts += y->experts;
        n.least_experts = y->least_experts > n.least_experts ? y->least_experts : n.least_experts;
    }
    return n;
}

/* ---- how much each device is to have ----------------------------------------------------------------------------- */

static bool has_own_room(const struct stage_device *d)
{
    return d->room_bytes != UINT64_MAX;
}

/* The speed of the fastest device with memory of its own that has nothing yet; less than 0: all have something. */
static double fastest_left(const struct stage_device *devices, const double *want, int n)
{
    double most = -1;
    for (int i = 0; i < n; i++)
        if (has_own_room(&devices[i]) && want[i] < 0 && devices[i].speed > most)
            most = devices[i].speed;
    return most;
}

/* Fills those devices alike that are nearly as fast as the fastest of those that have nothing yet; returns what
 * remains. */
static double fill_fastest(const struct stage_device *devices, double *want, int n, double speed, double left)
{
    static const double nearly = 0.75;
    double room = 0;
    for (int i = 0; i < n; i++)
        if (has_own_room(&devices[i]) && want[i] < 0 && devices[i].speed >= nearly * speed)
            room += (double)devices[i].room_bytes;
    double given = left < room ? left : room;
    for (int i = 0; i < n; i++)
        if (has_own_room(&devices[i]) && want[i] < 0 && devices[i].speed >= nearly * speed)
            want[i] = room > 0 ? given * (double)devices[i].room_bytes / room : 0;
    return left - given;
}

/* want [n]: the bytes, of `all`, that each device is to have: above 0, as each gets a layer. */
static void want_bytes(const struct stage_device *devices, int n, double all, double *want)
{
    static const double least_part = 1e-9;
    double left = all, own = 0, host = 0, speed;
    for (int i = 0; i < n; i++) {
        want[i] = -1;
        own += has_own_room(&devices[i]) ? (double)devices[i].room_bytes : 0;
        host += has_own_room(&devices[i]) ? 0 : devices[i].speed;
    }
    while ((speed = fastest_left(devices, want, n)) >= 0)
        left = fill_fastest(devices, want, n, speed, left);
    for (int i = 0; i < n; i++) {
        if (!has_own_room(&devices[i]))
            want[i] = host > 0 ? left * devices[i].speed / host : left / n;
        else if (left > 0 && host <= 0 && own > 0) /* there is too little memory: experts are read again and again */
            want[i] = all * (double)devices[i].room_bytes / own;
        want[i] = fmax(want[i], all * least_part);
    }
}

/* ---- where the stages end ---------------------------------------------------------------------------------------- */

/* The best ways to give the first i layers to devices 0 to d, found for one device after the other (dynamic
 * programming). A way is as bad as the device that gets most of what it is to have. */
struct ways {
    int64_t n_layer;
    double *sum;   /* [n_layer + 1] what the first i layers take, in the unit of `want` */
    double *worst; /* [n_device][n_layer + 1] how bad the best way is; INFINITY: there is none */
    int64_t *from; /* [n_device][n_layer + 1] the first layer of device d in that way */
};

/* Layers [first, end) as a part of what a device is to have. */
static double part_of(const struct ways *w, double want, int64_t first, int64_t end)
{
    double n = w->sum[end] - w->sum[first];
    return want > 0 ? n / want : 0;
}

/* Finds the best way for the first `end` layers and devices 0 to d; among equals, the one in which earlier devices have
 * more layers. */
static void find_way(const struct ways *w, double want, int d, int64_t end)
{
    double *worst = w->worst + d * (w->n_layer + 1), *before = worst - (w->n_layer + 1);
    int64_t *from = w->from + d * (w->n_layer + 1);
    worst[end] = INFINITY;
    if (d == 0) {
        worst[end] = part_of(w, want, 0, end);
        return;
    }
    for (int64_t first = d; first < end; first++) {
        double here = fmax(before[first], part_of(w, want, first, end));
        if (here <= worst[end] && isfinite(here)) {
            worst[end] = here;
            from[end] = first;
        }
    }
}

static bool find_ends(const struct ways *w, const struct stage_facts *f, const double *want, int n_device, int64_t *end)
{
    for (int d = 0; d < n_device; d++)
        for (int64_t i = 0; i <= f->n_layer; i++) {
            double *worst = &w->worst[d * (w->n_layer + 1) + i];
            bool may_end = i > d && (i == f->n_layer || f->layers[i - 1].may_end);
            if (may_end)
                find_way(w, want[d], d, i);
            else
                *worst = INFINITY;
        }
    int64_t last = f->n_layer;
    if (!isfinite(w->worst[(n_device - 1) * (w->n_layer + 1) + last]))
        return false;
    for (int d = n_device; d-- > 0;) {
        end[d] = last;
        last = w->from[d * (w->n_layer + 1) + last];
    }
    return true;
}

static void sum_up(const struct ways *w, const struct stage_facts *f, bool by_layers)
{
    double n = 0;
    for (int64_t i = 0; i < f->n_layer; i++) {
        n += i == 0 && !by_layers ? (double)f->input : 0;
        w->sum[i] = i ? n : 0;
        n += by_layers ? 1 : (double)f->layers[i].weights + (double)f->layers[i].experts;
    }
    w->sum[f->n_layer] = n + (by_layers ? 0 : (double)f->output);
}

err_code stage_choose(const struct stage_facts *f, const struct stage_device *devices, int n_device, int64_t *end,
                      struct err *e)
{
    double shares = 0, *want;
    size_t n = (size_t)n_device * (size_t)(f->n_layer + 1);
    struct ways w = {.n_layer = f->n_layer};
    for (int i = 0; i < n_device; i++)
        shares += devices[i].share;
    want = mem_calloc((size_t)n_device, sizeof *want);
    w.sum = mem_calloc((size_t)f->n_layer + 1, sizeof *w.sum);
    w.worst = mem_calloc(n, sizeof *w.worst);
    w.from = mem_calloc(n, sizeof *w.from);
    err_code code = want && w.sum && w.worst && w.from ? ERR_OK : err_nomem(e, n * sizeof *w.worst, "the stages");
    if (code == ERR_OK) {
        sum_up(&w, f, shares > 0);
        want_bytes(devices, n_device, w.sum[f->n_layer], want);
        for (int i = 0; i < n_device && shares > 0; i++)
            want[i] = w.sum[f->n_layer] * devices[i].share / shares;
        if (!find_ends(&w, f, want, n_device, end))
            code = err_set(e, ERR_USAGE,
                           "%lld layers can't be divided among %d devices so that each has some, with the caches that "
                           "they use: expected fewer devices",
                           (long long)f->n_layer, n_device);
    }
    mem_free(want);
    mem_free(w.sum);
    mem_free(w.worst);
    mem_free(w.from);
    return code;
}
