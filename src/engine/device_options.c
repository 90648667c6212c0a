#include "engine/device_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

/* Reads "cpu:N" or "vulkan:N" at *text, and the comma behind it. */
static bool parse_device(const char **text, struct asked_device *d)
{
    enum { MAX_NUMBER = 63 };
    char *end;
    const char *colon = *text + strcspn(*text, ":,");
    d->is_vulkan = !strncmp(*text, "vulkan:", 7);
    if ((!d->is_vulkan && strncmp(*text, "cpu:", 4) != 0) || colon[1] < '0' || colon[1] > '9')
        return false;
    long n = strtol(colon + 1, &end, 10);
    if ((*end != '\0' && *end != ',') || (*end == ',' && end[1] == '\0'))
        return false;
    if (d->is_vulkan ? n > MAX_NUMBER : n < 1 || n > POOL_MAX_THREADS)
        return false;
    d->number = d->is_vulkan ? (int)n : 0;
    d->n_threads = d->is_vulkan ? pool_default_threads() : (int)n;
    *text = *end ? end + 1 : end;
    return true;
}

const char *device_options_name(const struct asked_device *d, char out[DEVICE_NAME_BYTES])
{
    snprintf(out, DEVICE_NAME_BYTES, "%s:%d", d->is_vulkan ? "vulkan" : "cpu", d->is_vulkan ? d->number : d->n_threads);
    return out;
}

static err_code parse_devices(struct device_options *o, const char *devices, struct err *e)
{
    const char *text = devices;
    o->n_device = 0;
    while (o->n_device == 0 || *text) {
        if (o->n_device == ENGINE_MAX_DEVICE || !parse_device(&text, &o->devices[o->n_device]))
            return err_set(
                e, ERR_USAGE,
                "devices %s: expected cpu:THREADS[,cpu:THREADS...], %d at most, of 1 to %d, or vulkan:NUMBER", devices,
                ENGINE_MAX_DEVICE, POOL_MAX_THREADS);
        o->n_device++;
    }
    return ERR_OK;
}

err_code device_options_parse(struct device_options *out, const char *devices, int n_threads, int n_rank,
                              const char *split, struct err *e)
{
    *out = (struct device_options){.n_device = 1, .devices = {{.n_threads = n_threads}}};
    if (devices)
        TRY(parse_devices(out, devices, e));
    if (out->n_device > 1 && n_rank > 1)
        return err_set(e, ERR_USAGE, "%d devices in %d processes: expected one of the two to be 1", out->n_device,
                       n_rank);
    out->n_place = out->n_device > 1 ? out->n_device : n_rank;
    if (!split)
        return ERR_OK;
    if (out->n_place == 1)
        return err_set(e, ERR_USAGE, "split %s, and one device: expected several", split);
    TRY(split_parse(split, &out->split, out->shares, &out->n_share, e));
    if (out->n_share && out->n_share != out->n_place)
        return err_set(e, ERR_USAGE, "split %s names %d shares for %d %s: expected one for each", split, out->n_share,
                       out->n_place, n_rank > 1 ? "processes" : "devices");
    return ERR_OK;
}

void device_options_places(const struct device_options *o, struct division_place *places)
{
    for (int i = 0; i < o->n_device; i++)
        places[i] = (struct division_place){.room_bytes = SIZE_MAX,
                                            .bytes_per_s = o->devices[i].bytes_per_s > 0 ? o->devices[i].bytes_per_s
                                                                                         : o->devices[i].n_threads,
                                            .share = i < o->n_share ? o->shares[i] : 0,
                                            .replica_bytes = SIZE_MAX};
}
