#include "places/division.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

/* A division in progress: experts are assigned one by one, the hottest of a layer first, each to the place that would
 * finish its part of the layer soonest, of those whose quota is not used up. */
struct divider {
    const struct expert_layer *layers;
    const size_t *slot_bytes;
    const struct division_place *places;
    const struct split *split;
    const struct usage *past; /* may be NULL */
    struct division *out;
    double speed[DIVISION_MAX_PLACE];
    double quota[DIVISION_MAX_PLACE]; /* bytes that each place may still be given */
    int first;                        /* the first place that is given experts: 1 if place 0 is a cache */
    double left_bytes;                /* of experts that have no place yet */
    double used[DIVISION_MAX_PLACE];  /* bytes of the experts that each place has */
};

/* An expert of a call that may be computed at several places. */
struct division_load {
    int32_t expert, n_row;
    int place; /* where it is to be computed */
};

/* With counts of so many tokens half of the heat is taken from the counts, which may be chance; with more, more. */
enum { FEW_TOKENS = 64 };

/* An expert and how much work it is, in proportion to others: those of its layer, or for replicas of all layers. */
struct hot {
    int layer;
    int32_t expert;
    double heat;
};

static uint64_t *holders_of(const struct division *d, int layer, int32_t expert)
{
    return &d->holders[(int64_t)layer * d->n_expert + expert];
}

static int home_of(const struct division *d, int layer, int32_t expert)
{
    return d->home[(int64_t)layer * d->n_expert + expert];
}

void division_speeds(const struct division_place *places, int n_place, double *speed)
{
    double least = INFINITY;
    for (int i = 0; i < n_place; i++)
        if (places[i].bytes_per_s > 0)
            least = fmin(least, places[i].bytes_per_s);
    for (int i = 0; i < n_place; i++)
        speed[i] = places[i].bytes_per_s > 0 ? places[i].bytes_per_s : isfinite(least) ? least : 1;
}

static double room_of(const struct division_place *p)
{
    return p->room_bytes == SIZE_MAX ? INFINITY : (double)p->room_bytes;
}

/* The least memory of a place that reads experts again and again: slots for one token's experts in each group of layers
 * whose slots have the same size. */
static double least_room(const struct divider *x)
{
    double least = 0;
    for (int i = 0; i < x->out->n_layer; i++) {
        int64_t most = 0;
        bool is_first = true;
        for (int j = 0; j < x->out->n_layer; j++)
            if (x->slot_bytes[j] == x->slot_bytes[i]) {
                most = x->layers[j].n_used > most ? x->layers[j].n_used : most;
                is_first &= j >= i;
            }
        least += is_first ? (double)most * (double)x->slot_bytes[i] : 0;
    }
    return least;
}

/* Divides what no place has room for in proportion to the speeds of their reads, as a layer waits for the slowest. Only
 * places that have memory enough to read again and again get a part. part [n_place], adding up to 1. False: some speeds
 * are not known. */
static bool divide_reads(const struct divider *x, double *part)
{
    double least = least_room(x), sum = 0;
    for (int i = x->first; i < x->out->n_place; i++) {
        const struct division_place *p = &x->places[i];
        if (p->reads_per_s <= 0)
            return false;
        part[i] = room_of(p) >= least ? p->reads_per_s : 0;
        sum += part[i];
    }
    for (int i = x->first; i < x->out->n_place && sum > 0; i++)
        part[i] /= sum;
    return sum > 0;
}

/* How many bytes each place may be given: its share, if shares were asked for, else what it has room for. If all memory
 * together is too small: what it has room for and its part of the rest (divide_reads) or, if that is not known, the
 * same part of all experts as of all memory. */
static void set_quotas(struct divider *x)
{
    double share = 0, room = 0, all = x->left_bytes, part[DIVISION_MAX_PLACE];
    for (int i = x->first; i < x->out->n_place; i++) {
        share += x->places[i].share;
        room += room_of(&x->places[i]);
    }
    bool is_short = share == 0 && room > 0 && room < all, by_reads = is_short && divide_reads(x, part);
    for (int i = x->first; i < x->out->n_place; i++) {
        double own = room_of(&x->places[i]);
        x->quota[i] = share > 0 ? all * x->places[i].share / share : own;
        if (is_short)
            x->quota[i] = by_reads ? own + (all - room) * part[i] : all * own / room;
    }
}

static void give(struct divider *x, int place, int layer, int32_t expert)
{
    uint64_t *holders = holders_of(x->out, layer, expert);
    if (*holders)
        x->out->replica_bytes += x->slot_bytes[layer];
    else
        x->out->home[(int64_t)layer * x->out->n_expert + expert] = (uint8_t)place;
    *holders |= (uint64_t)1 << place;
    x->used[place] += (double)x->slot_bytes[layer];
}

/* The place for n_bytes that add `heat` to its work: of the places with enough quota the one that would finish first,
 * among equals the lowest. If none has enough, the one with most quota. */
static int choose_place(const struct divider *x, const double *quota, const double *work, double n_bytes, double heat)
{
    int best = -1, most = x->first;
    for (int i = x->first; i < x->out->n_place; i++) {
        most = quota[i] > quota[most] ? i : most;
        if (quota[i] >= n_bytes && (best < 0 || (work[i] + heat) / x->speed[i] < (work[best] + heat) / x->speed[best]))
            best = i;
    }
    return best >= 0 ? best : most;
}

static int hottest_first(const void *a, const void *b)
{
    const struct hot *x = a, *y = b;
    if (x->heat != y->heat)
        return x->heat > y->heat ? -1 : 1;
    return x->expert != y->expert ? x->expert - y->expert : x->layer - y->layer;
}

static double rate(const struct divider *x, int layer, int32_t expert)
{
    return x->past ? usage_rate(x->past, layer, expert, x->layers[layer].n_used) : 0;
}

/* How hot the experts of a layer are. Sampled tokens use what they choose, prompts all experts, so half of the work is
 * counted by usage and half alike; and all of it alike while few tokens are known. */
static void heat_layer(const struct divider *x, int layer, struct hot *out)
{
    const struct expert_layer *l = &x->layers[layer];
    double mean = (double)l->n_used / (double)l->n_expert;
    double n_tok = x->past ? (double)x->past->total[layer] / (double)l->n_used : 0,
           known = n_tok / (n_tok + FEW_TOKENS);
    for (int32_t i = 0; i < l->n_expert; i++)
        out[i] = (struct hot){layer, i, mean + known * rate(x, layer, i) + (1 - known) * mean};
}

/* Divides each layer in proportion to the quotas that are left, so that no place's quota is used up by the first layers
 * and the last ones are all in one place. */
static void divide_layer(struct divider *x, int layer, const struct hot *hottest)
{
    double n_bytes = (double)x->slot_bytes[layer], layer_bytes = n_bytes * (double)x->layers[layer].n_expert;
    double here[DIVISION_MAX_PLACE] = {0}, work[DIVISION_MAX_PLACE] = {0}; /* quotas and work of this layer */
    for (int i = 0; i < x->out->n_place; i++)
        here[i] = x->quota[i] * (layer_bytes / x->left_bytes);
    for (int64_t i = 0; i < x->layers[layer].n_expert; i++) {
        int best = choose_place(x, here, work, n_bytes, hottest[i].heat);
        if (here[best] < n_bytes) /* rounding: what the layers behind this one can spare */
            best = choose_place(x, x->quota, work, n_bytes, hottest[i].heat);
        give(x, best, layer, hottest[i].expert);
        here[best] -= n_bytes;
        x->quota[best] -= n_bytes;
        work[best] += hottest[i].heat;
    }
    x->left_bytes -= layer_bytes;
}

static void divide_experts(struct divider *x, struct hot *ranked)
{
    for (int i = 0; i < x->out->n_layer; i++) {
        heat_layer(x, i, ranked);
        qsort(ranked, (size_t)x->layers[i].n_expert, sizeof *ranked, hottest_first);
        divide_layer(x, i, ranked);
    }
}

static void divide_layers(struct divider *x)
{
    double work[DIVISION_MAX_PLACE] = {0};
    for (int i = 0; i < x->out->n_layer; i++) {
        double n_bytes = (double)x->slot_bytes[i] * (double)x->layers[i].n_expert;
        int best = choose_place(x, x->quota, work, n_bytes, n_bytes);
        for (int32_t j = 0; j < x->layers[i].n_expert; j++)
            give(x, best, i, j);
        x->quota[best] -= n_bytes;
        work[best] += n_bytes;
    }
}

static bool has(const struct divider *x, int place, const struct hot *h)
{
    return *holders_of(x->out, h->layer, h->expert) >> place & 1;
}

static void divide_last(struct divider *x)
{
    struct division *d = x->out;
    for (int i = 0; i < d->n_layer; i++)
        for (int32_t j = 0; j < x->layers[i].n_expert; j++)
            give(x, i < d->n_layer - x->split->n_last ? 0 : d->n_place - 1, i, j);
}

static void divide_at_random(struct divider *x)
{
    struct random r = random_seed(x->split->seed);
    uint32_t n_place = (uint32_t)x->out->n_place;
    double share = fmin(x->split->replica_share, 1) * 0x1p32;
    for (int i = 0; i < x->out->n_layer; i++)
        for (int32_t j = 0; j < x->layers[i].n_expert; j++) {
            bool is_doubled = (double)random_u32(&r) < share;
            give(x, (int)(random_u32(&r) % n_place), i, j);
            int other = (int)(random_u32(&r) % n_place);
            if (is_doubled && !has(x, other, &(struct hot){i, j, 0}))
                give(x, other, i, j);
        }
}

/* The memory that a place has left for replicas. */
static double spare_of(const struct divider *x, int place)
{
    const struct division_place *p = &x->places[place];
    double spare = room_of(p) - x->used[place],
           most = p->replica_bytes == SIZE_MAX ? INFINITY : (double)p->replica_bytes;
    return fmax(fmin(spare, most), 0);
}

/* The place for a replica: of those that lack the expert and have room the one with the least replicas. -1: none. */
static int choose_replica_place(const struct divider *x, const struct hot *h, const double *spare, const double *given)
{
    double n_bytes = (double)x->slot_bytes[h->layer];
    int best = -1;
    for (int i = x->first; i < x->out->n_place; i++)
        if (!has(x, i, h) && given[i] + n_bytes <= spare[i] && (best < 0 || given[i] < given[best]))
            best = i;
    return best;
}

/* Gives the hottest experts of all layers a further place, then again, while there is room; n_bytes at most. */
static void replicate(struct divider *x, struct hot *ranked, double n_bytes)
{
    double spare[DIVISION_MAX_PLACE], given[DIVISION_MAX_PLACE] = {0};
    int64_t n = 0;
    for (int i = 0; i < x->out->n_layer; n += x->layers[i++].n_expert)
        heat_layer(x, i, ranked + n);
    qsort(ranked, (size_t)n, sizeof *ranked, hottest_first);
    for (int i = x->first; i < x->out->n_place; i++)
        spare[i] = spare_of(x, i);
    for (int round = x->first + 1; round < x->out->n_place; round++)
        for (int64_t i = 0; i < n; i++) {
            double here = (double)x->slot_bytes[ranked[i].layer];
            int place = here <= n_bytes ? choose_replica_place(x, &ranked[i], spare, given) : -1;
            if (place < 0)
                continue;
            give(x, place, ranked[i].layer, ranked[i].expert);
            given[place] += here;
            n_bytes -= here;
        }
}

/* Bytes of replicas that are asked for. */
static double wanted_replicas(const struct split *split, double all_bytes)
{
    return split->replica_bytes ? (double)split->replica_bytes : split->replica_share * all_bytes;
}

/* Whether a token's experts in a layer fit into every place that has some. */
static err_code check_rooms(const struct divider *x, struct err *e)
{
    for (int i = 0; i < x->out->n_layer; i++)
        for (int p = 0; p < x->out->n_place; p++) {
            int64_t n = 0, n_used = x->layers[i].n_used;
            for (int32_t j = 0; j < x->layers[i].n_expert; j++)
                n += (int64_t)(*holders_of(x->out, i, j) >> p & 1);
            size_t least = (size_t)(n < n_used ? n : n_used) * x->slot_bytes[i];
            if (least > x->places[p].room_bytes)
                return err_set(e, ERR_LIMIT,
                               "place %d has room for %zu bytes of experts; a token's experts in layer %d that it "
                               "would have need %zu",
                               p, x->places[p].room_bytes, x->layers[i].index, least);
        }
    return ERR_OK;
}

static err_code create(struct divider *x, struct hot **ranked, struct err *e)
{
    struct division *d = x->out;
    for (int i = 0; i < d->n_layer; i++) {
        d->n_expert = x->layers[i].n_expert > d->n_expert ? x->layers[i].n_expert : d->n_expert;
        x->left_bytes += (double)x->slot_bytes[i] * (double)x->layers[i].n_expert;
    }
    size_t n_all = (size_t)d->n_layer * (size_t)d->n_expert;
    d->holders = mem_calloc(n_all, sizeof *d->holders);
    d->home = mem_calloc(n_all, sizeof *d->home);
    d->n_row = mem_calloc((size_t)d->n_expert, sizeof *d->n_row);
    d->movable = mem_calloc((size_t)d->n_expert, sizeof *d->movable);
    *ranked = mem_calloc(n_all, sizeof **ranked);
    bool has_all = d->holders && d->home && d->n_row && d->movable && *ranked;
    return has_all ? ERR_OK : err_nomem(e, n_all * sizeof **ranked, "dividing experts");
}

err_code division_make(struct division *out, const struct expert_layer *layers, const size_t *slot_bytes, int n_layer,
                       const struct division_place *places, int n_place, const struct split *split,
                       const struct usage *past, struct err *e)
{
    struct divider x = {
        .layers = layers, .slot_bytes = slot_bytes, .places = places, .split = split, .past = past, .out = out};
    struct hot *ranked;
    assert(n_layer > 0 && n_place > 0 && n_place <= DIVISION_MAX_PLACE);
    x.first = split->kind == SPLIT_CACHE;
    assert(x.first < n_place);
    *out = (struct division){
        .n_place = n_place, .n_layer = n_layer, .has_cache = x.first > 0, .cache_share = split->cache_share};
    err_code code = create(&x, &ranked, e);
    if (code == ERR_OK) {
        division_speeds(places + x.first, n_place - x.first, x.speed + x.first);
        double n_replica_bytes = wanted_replicas(split, x.left_bytes);
        set_quotas(&x);
        switch (split->kind) {
        case SPLIT_EXPERTS:
        case SPLIT_CACHE: divide_experts(&x, ranked); break;
        case SPLIT_LAYERS: divide_layers(&x); break;
        case SPLIT_GATE:
        case SPLIT_STAGES: assert(false); break;
        case SPLIT_LAST: divide_last(&x); break;
        case SPLIT_RANDOM: divide_at_random(&x); break;
        }
        if (n_replica_bytes > 0 && split->kind != SPLIT_RANDOM)
            replicate(&x, ranked, n_replica_bytes);
        code = check_rooms(&x, e);
    }
    mem_free(ranked);
    if (code != ERR_OK)
        division_close(out);
    return code;
}

void division_close(struct division *d)
{
    mem_free(d->holders);
    mem_free(d->home);
    mem_free(d->n_row);
    mem_free(d->movable);
    *d = (struct division){0};
}

uint64_t division_holders(const struct division *d, int layer, int32_t expert)
{
    return *holders_of(d, layer, expert);
}

void division_is_here(const struct division *d, int place, int layer, bool *is_here)
{
    bool is_cache = place == 0 && d->has_cache;
    for (int32_t i = 0; i < d->n_expert; i++) {
        uint64_t holders = *holders_of(d, layer, i);
        is_here[i] = is_cache ? holders != 0 : holders >> place & 1;
    }
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

bool division_has_replicas(const struct division *d, int layer, int32_t expert)
{
    uint64_t holders = *holders_of(d, layer, expert);
    return (holders & (holders - 1)) != 0;
}

static int most_rows_first(const void *a, const void *b)
{
    const struct division_load *x = a, *y = b;
    return x->n_row != y->n_row ? (x->n_row > y->n_row ? -1 : 1) : x->expert - y->expert;
}

/* Counts the rows of each expert, adds those of experts with one place to its work, and lists the others: how many. */
static int64_t count_rows(const struct division *d, int layer, const int32_t *ids, int64_t n, double *work)
{
    int64_t n_movable = 0;
    for (int64_t i = 0; i < n; i++) {
        assert(*holders_of(d, layer, ids[i]));
        if (!d->replica_bytes || !division_has_replicas(d, layer, ids[i]))
            work[home_of(d, layer, ids[i])]++;
        else if (d->n_row[ids[i]]++ == 0)
            d->movable[n_movable++].expert = ids[i];
    }
    for (int64_t i = 0; i < n_movable; i++)
        d->movable[i].n_row = d->n_row[d->movable[i].expert];
    return n_movable;
}

/* The holder that would finish n more rows first; among equals the lowest. */
static int least_busy(uint64_t holders, const double *work, const double *speed, double n)
{
    int best = -1;
    for (int i = 0; i < DIVISION_MAX_PLACE && holders >> i; i++)
        if (holders >> i & 1 && (best < 0 || (work[i] + n) / speed[i] < (work[best] + n) / speed[best]))
            best = i;
    return best;
}

/* When the last place finishes. */
static double longest(const struct division *d, const double *work, const double *speed)
{
    double most = 0;
    for (int i = 0; i < d->n_place; i++)
        most = fmax(most, work[i] / speed[i]);
    return most;
}

/* Places the experts that may be computed at several; work: of the others. */
static void balance(const struct division *d, int layer, int64_t n_movable, const double *work, const double *speed)
{
    double there[DIVISION_MAX_PLACE], at_home[DIVISION_MAX_PLACE];
    memcpy(there, work, sizeof there);
    memcpy(at_home, work, sizeof at_home);
    qsort(d->movable, (size_t)n_movable, sizeof *d->movable, most_rows_first);
    for (struct division_load *m = d->movable; m < d->movable + n_movable; m++) {
        m->place = least_busy(*holders_of(d, layer, m->expert), there, speed, m->n_row);
        there[m->place] += m->n_row;
        at_home[home_of(d, layer, m->expert)] += m->n_row;
    }
    if (longest(d, at_home, speed) < longest(d, there, speed))
        for (struct division_load *m = d->movable; m < d->movable + n_movable; m++)
            m->place = home_of(d, layer, m->expert);
}

void division_choose(const struct division *d, const double *speed, int layer, const int32_t *ids, int64_t n,
                     uint8_t *place)
{
    double work[DIVISION_MAX_PLACE] = {0};
    int64_t n_movable = count_rows(d, layer, ids, n, work);
    if (n_movable)
        balance(d, layer, n_movable, work, speed);
    for (int64_t i = 0; i < n_movable; i++) /* in the place of the number, as -1 - place */
        d->n_row[d->movable[i].expert] = -1 - d->movable[i].place;
    for (int64_t i = 0; i < n; i++) {
        int32_t there = d->n_row[ids[i]];
        place[i] = (uint8_t)(there < 0 ? -1 - there : home_of(d, layer, ids[i]));
    }
    for (int64_t i = 0; i < n_movable; i++)
        d->n_row[d->movable[i].expert] = 0;
}

/* ---- the option ----------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {
    [SPLIT_EXPERTS] = "experts", [SPLIT_LAYERS] = "layers", [SPLIT_LAST] = "last",    [SPLIT_RANDOM] = "random",
    [SPLIT_CACHE] = "cache",     [SPLIT_GATE] = "gate",     [SPLIT_STAGES] = "stages"};

static err_code parse_seed(const char *text, uint64_t *out, struct err *e)
{
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 18)
        return err_set(e, ERR_USAGE, "a seed of \"%s\"; expected random:SEED, a number of at most 18 digits", text);
    *out = strtoull(text, NULL, 10);
    return ERR_OK;
}

static err_code parse_last(const char *text, int *out, struct err *e)
{
    if (!*text || strspn(text, "0123456789") != strlen(text) || strlen(text) > 6)
        return err_set(e, ERR_USAGE, "the last \"%s\" layers; expected last:N, a number of at most 6 digits", text);
    *out = atoi(text);
    return ERR_OK;
}

static err_code parse_shares(const char *text, double *shares, int *n_share, struct err *e)
{
    double sum = 0;
    for (const char *p = text, *end;; p = end + 1) {
        char *number_end;
        end = p + strspn(p, "0123456789.");
        double share = strtod(p, &number_end);
        if (end == p || number_end != end || (*end && *end != ','))
            return err_set(e, ERR_USAGE, "shares of \"%s\"; expected a number for each device, such as 3,1", text);
        if (*n_share == DIVISION_MAX_PLACE)
            return err_set(e, ERR_USAGE, "shares of \"%s\"; expected %d at most", text, DIVISION_MAX_PLACE);
        shares[(*n_share)++] = share;
        sum += share;
        if (!*end)
            break;
    }
    return sum > 0 && isfinite(sum) ? ERR_OK
                                    : err_set(e, ERR_USAGE, "shares of \"%s\"; expected one at least above 0", text);
}

static err_code parse_percent(const char *text, double *share, struct err *e)
{
    char *end;
    double percent = *text >= '0' && *text <= '9' ? strtod(text, &end) : 0;
    if (!(percent > 0 && percent <= 100) || strcmp(end, "%") != 0 || strspn(text, "0123456789.%") != strlen(text))
        return err_set(e, ERR_USAGE,
                       "a part of \"%s\"; expected cache:N%% or gate:N%%, above 0 and at most 100%% of all experts",
                       text);
    *share = percent / 100;
    return ERR_OK;
}

err_code split_parse(const char *text, struct split *out, double *shares, int *n_share, struct err *e)
{
    size_t n = strcspn(text, ":"), n_kind = sizeof kinds / sizeof *kinds, kind = 0;
    while (kind < n_kind && (strlen(kinds[kind]) != n || strncmp(text, kinds[kind], n) != 0))
        kind++;
    if (kind == n_kind)
        return err_set(e, ERR_USAGE, "a split of \"%s\"; expected experts, layers, stages, last, random, cache or gate",
                       text);
    *out = (struct split){.kind = (enum split_kind)kind};
    *n_share = 0;
    if (out->kind == SPLIT_LAST)
        return parse_last(text[n] ? text + n + 1 : "", &out->n_last, e);
    if (!text[n])
        return ERR_OK;
    switch (out->kind) {
    case SPLIT_RANDOM: return parse_seed(text + n + 1, &out->seed, e);
    case SPLIT_CACHE:
    case SPLIT_GATE: return parse_percent(text + n + 1, &out->cache_share, e);
    default: return parse_shares(text + n + 1, shares, n_share, e);
    }
}
