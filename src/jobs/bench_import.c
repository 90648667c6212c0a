#define _GNU_SOURCE /* timegm, strptime */
#include "jobs/bench_import.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/printable.h"

struct entry {
    const json_t *j;
    const char *name; /* of the file */
    size_t i;
};

static err_code wrong(const struct entry *x, const char *key, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s, entry %zu: key \"%s\": expected %s", x->name, x->i + 1, key, expected);
}

/* Absent: *out stays. */
static err_code read_number(const struct entry *x, const char *key, double least, double *out, struct err *e)
{
    const json_t *j = json_object_get(x->j, key);
    double v = json_number_value(j);
    if (!j)
        return ERR_OK;
    if (!json_is_number(j) || !(v >= least && v <= 1e15))
        return wrong(x, key, least < 0 ? "a number of -1 or more" : "a number of 0 or more", e);
    *out = v;
    return ERR_OK;
}

static err_code read_count(const struct entry *x, const char *key, int64_t least, int64_t *out, struct err *e)
{
    double v = (double)*out;
    TRY(read_number(x, key, (double)least, &v, e));
    *out = (int64_t)v;
    return ERR_OK;
}

static void take_text(const struct entry *x, const char *key, char *out, size_t n_out)
{
    const char *s = json_string_value(json_object_get(x->j, key)), *slash = s ? strrchr(s, '/') : NULL;
    s = s && slash && !strcmp(key, "model_filename") ? slash + 1 : s;
    if (s)
        (void)printable_line(s, strlen(s), out, n_out); /* whole characters, so that it can be read again */
}

/* "2026-11-01T12:00:00Z" */
static void take_time(const struct entry *x, struct receipt *r)
{
    const char *s = json_string_value(json_object_get(x->j, "test_time"));
    struct tm tm = {0};
    if (s && strptime(s, "%Y-%m-%dT%H:%M:%SZ", &tm))
        r->time_s = max_i64((int64_t)timegm(&tm), 0); /* 0: not known */
}

/* Where the experts were. llama-bench counts layers on the GPU, and those whose experts are not. */
static err_code take_regime(const struct bench_import *in, const struct entry *x, struct receipt *r, struct err *e)
{
    int64_t n_gpu_layers = 0, n_cpu_moe = 0;
    const char *gpu = json_string_value(json_object_get(x->j, "gpu_info"));
    TRY(read_count(x, "n_gpu_layers", -1, &n_gpu_layers, e)); /* -1: all */
    TRY(read_count(x, "n_cpu_moe", 0, &n_cpu_moe, e));
    bool has_gpu = gpu && *gpu && n_gpu_layers != 0;
    r->regime = !has_gpu ? REGIME_RAM : n_cpu_moe > 0 ? REGIME_OFFLOAD : REGIME_VRAM;
    if (r->regime != REGIME_OFFLOAD)
        return ERR_OK;
    if (!in->n_layer)
        return err_set(e, ERR_USAGE,
                       "%s, entry %zu: of %lld layers the experts were on the CPU: say of how many, with "
                       "--layers N",
                       x->name, x->i + 1, (long long)n_cpu_moe);
    r->at = n_cpu_moe >= in->n_layer ? 1 : (double)n_cpu_moe / (double)in->n_layer;
    return ERR_OK;
}

/* *is_taken: it is one of the two kinds. */
static err_code read_entry(const struct bench_import *in, const struct entry *x, struct receipt *r, bool *is_taken,
                           struct err *e)
{
    int64_t n_gen = 0, n_depth = 0;
    double speed = 0;
    *r = (struct receipt){.n_texts = 1, .method = "llama-bench"};
    if (!json_is_object(x->j))
        return err_set(e, ERR_FORMAT, "%s, entry %zu: expected an object", x->name, x->i + 1);
    TRY(read_count(x, "n_prompt", 0, &r->n_prompt, e));
    TRY(read_count(x, "n_gen", 0, &n_gen, e));
    TRY(read_count(x, "n_depth", 0, &n_depth, e));
    TRY(read_count(x, "n_threads", 0, &r->n_threads, e));
    TRY(read_number(x, "avg_ts", 0, &speed, e));
    if (!(speed > 0))
        return wrong(x, "avg_ts", "tokens a second, more than 0", e);
    *is_taken = (r->n_prompt > 0) != (n_gen > 0);
    enum speed_of of = n_gen > 0 ? SPEED_DECODE : SPEED_PREFILL;
    r->measured[of] = speed;
    r->ceiling[of] = in->ceiling[of];
    r->n_ctx = n_depth + n_gen / 2;
    take_text(x, "cpu_info", r->machine, sizeof r->machine);
    take_text(x, "model_filename", r->model, sizeof r->model);
    snprintf(r->settings, sizeof r->settings, "llama.cpp");
    take_time(x, r);
    return *is_taken ? take_regime(in, x, r, e) : ERR_OK;
}

static err_code read_entries(const struct bench_import *in, const json_t *j, const char *name, struct receipt *list,
                             size_t *n, struct err *e)
{
    for (size_t i = 0; i < json_array_size(j); i++) {
        const struct entry x = {json_array_get(j, i), name, i};
        bool is_taken = false;
        TRY(read_entry(in, &x, &list[*n], &is_taken, e));
        *n += is_taken;
    }
    return *n ? ERR_OK : err_set(e, ERR_FORMAT, "%s: no entry is a prompt alone or tokens alone (-p or -n)", name);
}

err_code bench_import_read(const struct bench_import *in, const char *text, size_t n_text, const char *name,
                           struct receipt **list, size_t *n, struct err *e)
{
    json_error_t why = {0};
    json_t *j = json_read(text, n_text, JSON_REJECT_DUPLICATES, &why);
    *list = NULL;
    *n = 0;
    if (!j && !*why.text)
        return err_nomem(e, n_text, name);
    err_code code = ERR_OK;
    if (!json_is_array(j))
        code = err_set(e, ERR_FORMAT, "%s: expected the array that llama-bench -o json writes%s%s", name, j ? "" : ": ",
                       j ? "" : why.text);
    else if (!(*list = mem_calloc(json_array_size(j) + 1, sizeof **list)))
        code = err_nomem(e, (json_array_size(j) + 1) * sizeof **list, "receipts");
    else
        code = read_entries(in, j, name, *list, n, e);
    json_decref(j);
    if (code != ERR_OK) {
        mem_free(*list);
        *list = NULL;
        *n = 0;
    }
    return code;
}
