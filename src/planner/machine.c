#include "planner/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "quant/quant.h"

/* ---- the keys of the file ---------------------------------------------------------------------------------------- */

enum key_kind { KEY_TEXT, KEY_COUNT, KEY_BYTES, KEY_RATE, KEY_LIST };

/* A key of an object, and the offset of its value in the struct. The items of a list have keys of their own. */
struct key {
    const char *name;
    enum key_kind kind;
    size_t at;
    double max;        /* largest value of a number; bytes of a text's buffer */
    size_t count_at;   /* KEY_LIST: offset of its length */
    size_t item_bytes; /* KEY_LIST: size of an item */
    const struct key *items;
};

/* Rates and sizes beyond any machine. */
#define MOST_RATE  1e18
#define MOST_BYTES 1e18

static const struct key memory_keys[] = {
    {"threads", KEY_COUNT, offsetof(struct machine_memory, n_threads), 4096},
    {"bytes_per_s", KEY_RATE, offsetof(struct machine_memory, bytes_per_s), MOST_RATE},
    {0}};

static const struct key product_keys[] = {
    {"type", KEY_TEXT, offsetof(struct machine_product, type), MACHINE_TYPE_BYTES},
    {"one_per_s", KEY_RATE, offsetof(struct machine_product, one_per_s), MOST_RATE},
    {"many_per_s", KEY_RATE, offsetof(struct machine_product, many_per_s), MOST_RATE},
    {0}};

static const struct key read_keys[] = {{"bytes", KEY_BYTES, offsetof(struct machine_read, n_bytes), 1 << 30},
                                       {"depth", KEY_COUNT, offsetof(struct machine_read, depth), 4096},
                                       {"bytes_per_s", KEY_RATE, offsetof(struct machine_read, bytes_per_s), MOST_RATE},
                                       {0}};

static const struct key drive_keys[] = {{"name", KEY_TEXT, offsetof(struct machine_drive, name), MACHINE_PATH_BYTES},
                                        {"random_reads", KEY_LIST, offsetof(struct machine_drive, reads),
                                         MACHINE_MAX_READ, offsetof(struct machine_drive, n_read),
                                         sizeof(struct machine_read), read_keys},
                                        {0}};

static const struct key gpu_keys[] = {
    {"name", KEY_TEXT, offsetof(struct machine_gpu, name), MACHINE_NAME_BYTES},
    {"memory_bytes", KEY_BYTES, offsetof(struct machine_gpu, memory_bytes), MOST_BYTES},
    {"free_bytes", KEY_BYTES, offsetof(struct machine_gpu, free_bytes), MOST_BYTES},
    {"bytes_per_s", KEY_RATE, offsetof(struct machine_gpu, bytes_per_s), MOST_RATE},
    {"int8_per_s", KEY_RATE, offsetof(struct machine_gpu, int8_per_s), MOST_RATE},
    {"to_bytes_per_s", KEY_RATE, offsetof(struct machine_gpu, to_bytes_per_s), MOST_RATE},
    {"from_bytes_per_s", KEY_RATE, offsetof(struct machine_gpu, from_bytes_per_s), MOST_RATE},
    {"to_pageable_bytes_per_s", KEY_RATE, offsetof(struct machine_gpu, to_pageable_per_s), MOST_RATE},
    {"from_pageable_bytes_per_s", KEY_RATE, offsetof(struct machine_gpu, from_pageable_per_s), MOST_RATE},
    {"dispatch_s", KEY_RATE, offsetof(struct machine_gpu, dispatch_s), 10},
    {0}};

static const struct key machine_keys[] = {
    {"name", KEY_TEXT, offsetof(struct machine, name), MACHINE_NAME_BYTES},
    {"threads", KEY_COUNT, offsetof(struct machine, n_thread), 4096},
    {"nodes", KEY_COUNT, offsetof(struct machine, n_node), 64},
    {"sockets", KEY_COUNT, offsetof(struct machine, n_socket), 64},
    {"cores", KEY_COUNT, offsetof(struct machine, n_core), 4096},
    {"l2_bytes", KEY_BYTES, offsetof(struct machine, l2_bytes), MOST_BYTES},
    {"l3_bytes", KEY_BYTES, offsetof(struct machine, l3_bytes), MOST_BYTES},
    {"ram_bytes", KEY_BYTES, offsetof(struct machine, ram_bytes), MOST_BYTES},
    {"free_bytes", KEY_BYTES, offsetof(struct machine, free_bytes), MOST_BYTES},
    {"memory", KEY_LIST, offsetof(struct machine, memory), MACHINE_MAX_READ, offsetof(struct machine, n_memory),
     sizeof(struct machine_memory), memory_keys},
    {"small_page_bytes_per_s", KEY_RATE, offsetof(struct machine, small_page_per_s), MOST_RATE},
    {"int8_per_s", KEY_RATE, offsetof(struct machine, int8_per_s), MOST_RATE},
    {"float_per_s", KEY_RATE, offsetof(struct machine, float_per_s), MOST_RATE},
    {"thread_int8_per_s", KEY_RATE, offsetof(struct machine, thread_int8_per_s), MOST_RATE},
    {"thread_float_per_s", KEY_RATE, offsetof(struct machine, thread_float_per_s), MOST_RATE},
    {"amx_per_s", KEY_RATE, offsetof(struct machine, amx_per_s), MOST_RATE},
    {"products", KEY_LIST, offsetof(struct machine, products), MACHINE_MAX_PRODUCT, offsetof(struct machine, n_product),
     sizeof(struct machine_product), product_keys},
    {"attention_one_per_s", KEY_RATE, offsetof(struct machine, attention_one_per_s), MOST_RATE},
    {"attention_many_per_s", KEY_RATE, offsetof(struct machine, attention_many_per_s), MOST_RATE},
    {"drives", KEY_LIST, offsetof(struct machine, drives), MACHINE_MAX_DRIVE, offsetof(struct machine, n_drive),
     sizeof(struct machine_drive), drive_keys},
    {"gpus", KEY_LIST, offsetof(struct machine, gpus), MACHINE_MAX_GPU, offsetof(struct machine, n_gpu),
     sizeof(struct machine_gpu), gpu_keys},
    {"ranks", KEY_COUNT, offsetof(struct machine, n_rank), MACHINE_MAX_RANK},
    {"rank_round_trip_s", KEY_RATE, offsetof(struct machine, rank_round_trip_s), 10},
    {"rank_bytes_per_s", KEY_RATE, offsetof(struct machine, rank_bytes_per_s), MOST_RATE},
    {0}};

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Where in the file a value is: its name, and "drives[0].name". */
struct place {
    const char *file;
    char path[128];
};

static struct place below(const struct place *p, const char *key, int i)
{
    struct place q = {.file = p->file};
    if (i >= 0)
        snprintf(q.path, sizeof q.path, "%.80s[%d]", p->path, i);
    else
        snprintf(q.path, sizeof q.path, "%.80s%s%.40s", p->path, *p->path ? "." : "", key);
    return q;
}

static err_code wrong(const struct place *p, const char *expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: key \"%s\": expected %s", p->file, p->path, expected);
}

static err_code read_number(const struct key *k, const json_t *j, const struct place *p, void *out, struct err *e)
{
    double x = json_number_value(j);
    char expected[64];
    snprintf(expected, sizeof expected, "%s from 0 to %g, or null", k->kind == KEY_RATE ? "a number" : "an integer",
             k->max);
    if ((k->kind == KEY_RATE ? !json_is_number(j) : !json_is_integer(j)) || !(x >= 0 && x <= k->max))
        return wrong(p, expected, e);
    switch (k->kind) {
    case KEY_COUNT: *(int *)out = (int)x; break;
    case KEY_BYTES: *(int64_t *)out = (int64_t)json_integer_value(j); break;
    default: *(double *)out = x; break;
    }
    return ERR_OK;
}

static err_code read_text(const struct key *k, const json_t *j, const struct place *p, char *out, struct err *e)
{
    char expected[64];
    snprintf(expected, sizeof expected, "a text of less than %d bytes", (int)k->max);
    if (!json_is_string(j) || (double)json_string_length(j) >= k->max ||
        strlen(json_string_value(j)) != json_string_length(j))
        return wrong(p, expected, e);
    memcpy(out, json_string_value(j), json_string_length(j) + 1);
    return ERR_OK;
}

static err_code read_object(const struct key *keys, const json_t *j, const struct place *p, char *out, struct err *e);

static err_code read_list(const struct key *k, const json_t *j, const struct place *p, char *out, struct err *e)
{
    char expected[64];
    snprintf(expected, sizeof expected, "a list of at most %d", (int)k->max);
    if (!json_is_array(j) || (double)json_array_size(j) > k->max)
        return wrong(p, expected, e);
    int n = (int)json_array_size(j);
    for (int i = 0; i < n; i++) {
        struct place q = below(p, NULL, i);
        TRY(read_object(k->items, json_array_get(j, (size_t)i), &q, out + k->at + (size_t)i * k->item_bytes, e));
    }
    memcpy(out + k->count_at, &n, sizeof n);
    return ERR_OK;
}

static err_code read_key(const struct key *k, const json_t *j, const struct place *p, char *out, struct err *e)
{
    if (json_is_null(j) && k->kind != KEY_TEXT && k->kind != KEY_LIST)
        return ERR_OK; /* unknown */
    switch (k->kind) {
    case KEY_TEXT: return read_text(k, j, p, out + k->at, e);
    case KEY_LIST: return read_list(k, j, p, out, e);
    default: return read_number(k, j, p, out + k->at, e);
    }
}

static err_code read_object(const struct key *keys, const json_t *j, const struct place *p, char *out, struct err *e)
{
    const char *name;
    json_t *value;
    if (!json_is_object(j))
        return err_set(e, ERR_FORMAT, "%s: %s%s%sexpected an object of a machine's facts", p->file,
                       *p->path ? "key \"" : "", p->path, *p->path ? "\": " : "");
    json_object_foreach((json_t *)j, name, value)
    {
        const struct key *k = keys;
        struct place q = below(p, name, -1);
        while (k->name && strcmp(k->name, name) != 0)
            k++;
        if (!k->name)
            return err_set(e, ERR_FORMAT, "%s: key \"%s\" is not known (docs/planner.md has those that are)", p->file,
                           q.path);
        TRY(read_key(k, value, &q, out, e));
    }
    return ERR_OK;
}

/* Measurements must ascend by threads, since values between two of them are interpolated. */
static err_code check_memory(const struct machine *m, const char *name, struct err *e)
{
    for (int i = 0; i < m->n_memory; i++)
        if (m->memory[i].n_threads <= (i ? m->memory[i - 1].n_threads : 0))
            return err_set(e, ERR_FORMAT, "%s: key \"memory[%d].threads\": expected more than %d", name, i,
                           i ? m->memory[i - 1].n_threads : 0);
    return ERR_OK;
}

static err_code check_products(const struct machine *m, const char *name, struct err *e)
{
    for (int i = 0; i < m->n_product; i++)
        if (!quant_find(m->products[i].type))
            return err_set(e, ERR_FORMAT, "%s: key \"products[%d].type\": expected a type of weights, as \"Q4_K\"",
                           name, i);
    return ERR_OK;
}

static err_code check_drives(const struct machine *m, const char *name, struct err *e)
{
    for (int i = 0; i < m->n_drive; i++)
        for (int j = 0; j < m->drives[i].n_read; j++)
            if (m->drives[i].reads[j].n_bytes < 1 || m->drives[i].reads[j].depth < 1)
                return err_set(e, ERR_FORMAT,
                               "%s: key \"drives[%d].random_reads[%d]\": expected bytes and depth above 0", name, i, j);
    return ERR_OK;
}

err_code machine_parse(struct machine *m, const char *text, size_t n, const char *name, struct err *e)
{
    json_error_t why;
    const struct place top = {.file = name};
    *m = (struct machine){0};
    json_t *j = json_read(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!j && !*why.text)
        return err_nomem(e, n, name);
    if (!j)
        return err_set(e, ERR_FORMAT, "%s, line %d: not a machine's facts in JSON: %s", name, why.line, why.text);
    err_code code = read_object(machine_keys, j, &top, (char *)m, e);
    json_decref(j);
    if (code == ERR_OK)
        code = check_memory(m, name, e);
    if (code == ERR_OK)
        code = check_products(m, name, e);
    return code == ERR_OK ? check_drives(m, name, e) : code;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* A rate to six digits: what was measured has no more. */
static json_t *rounded(double x)
{
    char text[32];
    double y = x;
    snprintf(text, sizeof text, "%.6g", x);
    sscanf(text, "%lf", &y);
    return y >= 1e6 && y < 9e15 ? json_integer((json_int_t)y) : json_real(y);
}

static json_t *write_object(const struct key *keys, const char *in);

static json_t *write_value(const struct key *k, const char *in)
{
    int count;
    int64_t bytes;
    double rate;
    json_t *list;
    switch (k->kind) {
    case KEY_TEXT: return json_text(in + k->at, strlen(in + k->at));
    case KEY_COUNT: memcpy(&count, in + k->at, sizeof count); return count ? json_integer(count) : json_null();
    case KEY_BYTES: memcpy(&bytes, in + k->at, sizeof bytes); return bytes ? json_integer(bytes) : json_null();
    case KEY_RATE: memcpy(&rate, in + k->at, sizeof rate); return rate > 0 ? rounded(rate) : json_null();
    case KEY_LIST: break;
    }
    memcpy(&count, in + k->count_at, sizeof count);
    list = json_array();
    for (int i = 0; list && i < count; i++)
        if (json_array_append_new(list, write_object(k->items, in + k->at + (size_t)i * k->item_bytes)) != 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *write_object(const struct key *keys, const char *in)
{
    json_t *j = json_object();
    for (const struct key *k = keys; j && k->name; k++)
        if (json_object_set_new(j, k->name, write_value(k, in)) != 0) {
            json_decref(j);
            j = NULL;
        }
    return j;
}

err_code machine_write(const struct machine *m, char **text, struct err *e)
{
    json_t *j = write_object(machine_keys, (const char *)m);
    *text = j ? json_write(j, JSON_INDENT(1) | JSON_REAL_PRECISION(6), NULL) : NULL;
    json_decref(j);
    return *text ? ERR_OK : err_nomem(e, sizeof *m, "a machine's facts");
}

/* ---- reading off ------------------------------------------------------------------------------------------------- */

double machine_memory_speed(const struct machine *m, int n_threads)
{
    const struct machine_memory *a = NULL;
    for (int i = 0; i < m->n_memory; i++) {
        const struct machine_memory *b = &m->memory[i];
        if (!(b->bytes_per_s > 0))
            continue;
        if (b->n_threads >= n_threads) {
            double x0 = a ? a->n_threads : 0, y0 = a ? a->bytes_per_s : 0;
            return y0 + (b->bytes_per_s - y0) * (n_threads - x0) / (b->n_threads - x0);
        }
        a = b;
    }
    return a ? a->bytes_per_s : 0;
}

double machine_peak(const struct machine *m, double all, double one, int n_threads)
{
    if (m->n_thread <= 0 || n_threads >= m->n_thread)
        return all;
    double part = all * n_threads / m->n_thread, alone = one * n_threads;
    return alone > part ? fmin(alone, all) : part;
}

double machine_rate_of(const struct machine *m, enum machine_rate rate, int n_threads)
{
    enum { READ_BYTES = 1 << 20 };
    if (rate == MACHINE_MEMORY)
        return machine_memory_speed(m, n_threads);
    if (rate == MACHINE_DRIVE)
        return m->n_drive == 1 ? machine_drive_speed(&m->drives[0], READ_BYTES) : 0;
    return machine_peak(m, m->int8_per_s, m->thread_int8_per_s, n_threads);
}

static void scale_memory(struct machine *m, double factor)
{
    for (int i = 0; i < m->n_memory; i++)
        m->memory[i].bytes_per_s *= factor;
}

static void scale_units(struct machine *m, double factor)
{
    double *const peaks[] = {&m->int8_per_s, &m->float_per_s,         &m->thread_int8_per_s,   &m->thread_float_per_s,
                             &m->amx_per_s,  &m->attention_one_per_s, &m->attention_many_per_s};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        *peaks[i] *= factor;
    for (int i = 0; i < m->n_product; i++) {
        m->products[i].one_per_s *= factor;
        m->products[i].many_per_s *= factor;
    }
}

static void scale_drives(struct machine *m, double factor)
{
    for (int i = 0; i < m->n_drive; i++)
        for (int k = 0; k < m->drives[i].n_read; k++)
            m->drives[i].reads[k].bytes_per_s *= factor;
}

void machine_scale_rate(struct machine *m, enum machine_rate rate, double factor)
{
    if (rate == MACHINE_MEMORY)
        scale_memory(m, factor);
    else if (rate == MACHINE_DRIVE)
        scale_drives(m, factor);
    else
        scale_units(m, factor);
}

void machine_set_rate(struct machine *m, enum machine_rate rate, int n_threads, double per_s)
{
    double known_per_s = machine_rate_of(m, rate, n_threads);
    if (known_per_s > 0) {
        machine_scale_rate(m, rate, per_s / known_per_s);
    } else if (rate == MACHINE_MEMORY) {
        m->memory[0] = (struct machine_memory){n_threads, per_s};
        m->n_memory = 1;
    }
}

/* The best rate of any depth with reads of up to so many bytes. Longer reads are never slower than shorter ones: if
 * they were measured to be, the drive was busy with something else. */
static double best_depth(const struct machine_drive *d, int64_t n_bytes)
{
    double best = 0;
    for (int i = 0; i < d->n_read; i++)
        if (d->reads[i].n_bytes <= n_bytes && d->reads[i].bytes_per_s > best)
            best = d->reads[i].bytes_per_s;
    return best;
}

double machine_drive_speed(const struct machine_drive *d, double n_bytes)
{
    int64_t below_bytes = 0, above_bytes = 0;
    for (int i = 0; i < d->n_read; i++) {
        int64_t n = d->reads[i].n_bytes;
        if (!(d->reads[i].bytes_per_s > 0))
            continue;
        if ((double)n <= n_bytes && n > below_bytes)
            below_bytes = n;
        if ((double)n >= n_bytes && (!above_bytes || n < above_bytes))
            above_bytes = n;
    }
    double low = best_depth(d, below_bytes), high = best_depth(d, above_bytes);
    if (!below_bytes)
        return above_bytes ? high * n_bytes / (double)above_bytes : 0;
    if (!above_bytes || above_bytes == below_bytes)
        return low;
    double x = log(n_bytes / (double)below_bytes) / log((double)above_bytes / (double)below_bytes);
    return low + (high - low) * x;
}
