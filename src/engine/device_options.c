#include "engine/device_options.h"

#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

/* Reads "cpu:N" at *text, and the comma behind it. */
static bool parse_device(const char **text, int *n_threads)
{
    char *end;
    if (strncmp(*text, "cpu:", 4) != 0 || (*text)[4] < '0' || (*text)[4] > '9')
        return false;
    long n = strtol(*text + 4, &end, 10);
    if (n < 1 || n > POOL_MAX_THREADS || (*end != '\0' && *end != ',') || (*end == ',' && end[1] == '\0'))
        return false;
    *n_threads = (int)n;
    *text = *end ? end + 1 : end;
    return true;
}

static err_code parse_devices(struct device_options *o, const char *devices, struct err *e)
{
    const char *text = devices;
    o->n_device = 0;
    while (o->n_device == 0 || *text) {
        if (o->n_device == ENGINE_MAX_DEVICE || !parse_device(&text, &o->n_threads[o->n_device]))
            return err_set(e, ERR_USAGE, "devices %s: expected cpu:THREADS[,cpu:THREADS...], %d at most, of 1 to %d",
                           devices, ENGINE_MAX_DEVICE, POOL_MAX_THREADS);
        o->n_device++;
    }
    return ERR_OK;
}

err_code device_options_parse(struct device_options *out, const char *devices, int n_threads, int n_rank,
                              const char *split, struct err *e)
{
    *out = (struct device_options){.n_device = 1, .n_threads = {n_threads}};
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
        places[i] = (struct division_place){
            .room_bytes = SIZE_MAX, .bytes_per_s = o->n_threads[i], .share = i < o->n_share ? o->shares[i] : 0};
}
