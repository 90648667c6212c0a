#include "quant/quant_nearest.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum {
    MAX_DIM = 8,
    MAX_DEPTH = 6,
    WAYS = 4,      /* the children of a node, one in each lane of a vector */
    RUN = 4 * WAYS /* points that are compared together */
};

typedef float lanes __attribute__((vector_size(16)));
typedef int32_t int_lanes __attribute__((vector_size(16)));
typedef uint32_t byte_lanes __attribute__((vector_size(16)));

/* ---- building ------------------------------------------------------------------------------------------------ */

/* A tree that is being built. */
struct build {
    struct nearest *t;
    const int8_t *points;    /* [n][n_dim] */
    uint16_t *order, *spare; /* the points' ids, in the order of the leaves; room for sorting them */
};

/* The box around points order[first..]; the dimension in which it is widest is returned. */
static int enclose(const struct build *b, int first, int n, int lo[MAX_DIM], int hi[MAX_DIM])
{
    int n_dim = b->t->n_dim, widest = 0;
    for (int k = 0; k < n_dim; k++)
        lo[k] = INT8_MAX, hi[k] = INT8_MIN;
    for (int i = first; i < first + n; i++) {
        const int8_t *p = b->points + b->order[i] * n_dim;
        for (int k = 0; k < n_dim; k++) {
            lo[k] = p[k] < lo[k] ? p[k] : lo[k];
            hi[k] = p[k] > hi[k] ? p[k] : hi[k];
        }
    }
    for (int k = 1; k < n_dim; k++)
        widest = hi[k] - lo[k] > hi[widest] - lo[widest] ? k : widest;
    return widest;
}

/* Sorts points by the dimension in which they are spread widest. */
static void sort_widest(const struct build *b, int first, int n)
{
    int lo[MAX_DIM], hi[MAX_DIM], at[257] = {0}, n_dim = b->t->n_dim, k = enclose(b, first, n, lo, hi);
    for (int i = first; i < first + n; i++)
        at[b->points[b->order[i] * n_dim + k] - INT8_MIN + 1]++;
    for (int v = 1; v < 257; v++)
        at[v] += at[v - 1];
    for (int i = first; i < first + n; i++)
        b->spare[at[b->points[b->order[i] * n_dim + k] - INT8_MIN]++] = b->order[i];
    memcpy(b->order + first, b->spare, (size_t)n * sizeof *b->order);
}

/* Byte v of lane l of a vector of sixteen points is point 4 v + l. */
static void fill_leaf(const struct build *b, int leaf, int first)
{
    struct nearest *t = b->t;
    for (int i = 0; i < t->n_leaf_point; i++) {
        const int8_t *p = b->points + b->order[first + i] * t->n_dim;
        int run = leaf * t->n_leaf_point / RUN + i / RUN, lane = i % WAYS, byte = i % RUN / WAYS;
        t->ids[leaf * t->n_leaf_point + i] = b->order[first + i];
        for (int k = 0; k < t->n_dim; k++)
            t->points[(run * t->n_dim + k) * WAYS + lane] |= (uint32_t)(uint8_t)p[k] << 8 * byte;
    }
}

static void build_node(const struct build *b, int node, int first, int n)
{
    struct nearest *t = b->t;
    int lo[MAX_DIM], hi[MAX_DIM], quarter = n / WAYS;
    if (node >= t->n_inner) {
        fill_leaf(b, node - t->n_inner, first);
        return;
    }
    sort_widest(b, first, n);
    sort_widest(b, first, n / 2);
    sort_widest(b, first + n / 2, n / 2);
    for (int c = 0; c < WAYS; c++) {
        enclose(b, first + c * quarter, quarter, lo, hi);
        for (int k = 0; k < t->n_dim; k++) {
            float *box = t->boxes + (node * t->n_dim + k) * 2 * WAYS + c;
            box[0] = 0.5f * (float)(lo[k] + hi[k]);
            box[WAYS] = 0.5f * (float)(hi[k] - lo[k]);
        }
        build_node(b, WAYS * node + 1 + c, first + c * quarter, quarter);
    }
}

bool nearest_open(struct nearest *t, const int8_t *points, int n, int n_dim)
{
    *t = (struct nearest){.n_dim = n_dim, .n_leaf_point = n_dim == 8 ? RUN : 2 * RUN};
    int n_leaf = n / t->n_leaf_point, depth = 0;
    for (int wide = 1; wide < n_leaf; wide *= WAYS, depth++)
        t->n_inner += wide;
    assert((n_dim == 8 || n_dim == 4) && depth <= MAX_DEPTH && n == t->n_leaf_point << 2 * depth);
    struct build b = {.t = t, .points = points, .order = mem_calloc((size_t)n, 2 * sizeof *b.order)};
    t->boxes = mem_alloc_aligned(64, (size_t)(t->n_inner * n_dim * 2 * WAYS) * sizeof *t->boxes);
    t->points = mem_calloc((size_t)(n * n_dim / 4), sizeof *t->points);
    t->ids = mem_calloc((size_t)n, sizeof *t->ids);
    bool ok = b.order && t->boxes && t->points && t->ids;
    if (ok) {
        b.spare = b.order + n;
        for (int i = 0; i < n; i++)
            b.order[i] = (uint16_t)i;
        build_node(&b, 0, 0, n);
    }
    mem_free(b.order);
    return ok;
}

void nearest_close(struct nearest *t)
{
    mem_free(t->boxes);
    mem_free(t->points);
    mem_free(t->ids);
    *t = (struct nearest){0};
}

/* ---- searching ----------------------------------------------------------------------------------------------- */

struct search {
    lanes at[MAX_DIM], w[MAX_DIM]; /* the coordinates searched for, and their weights */
    lanes w_box[MAX_DIM];          /* the weights for distances from boxes, which are stretched */
    float least;                   /* the least distance so far */
    int found;                     /* index into ids of the point at that distance; -1: none */
};

struct open_node {
    float bound; /* no point of the node is nearer */
    int node;
};

static inline lanes all_lanes(float x)
{
    return (lanes){0} + x;
}

static inline lanes load_lanes(const float *p)
{
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Byte v of each lane. */
static inline lanes lane_bytes(byte_lanes b, int v)
{
    return __builtin_convertvector((int_lanes)(b << (24 - 8 * v)) >> 24, lanes);
}

/* Compares sixteen points with the best one so far. */
static inline void look_at_run(const struct nearest *t, int n_dim, int run, struct search *s)
{
    const uint32_t *p = t->points + run * n_dim * WAYS;
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int k = 0; k < n_dim; k++, p += WAYS) {
        byte_lanes b;
        memcpy(&b, p, sizeof b);
        lanes d0 = s->at[k] - lane_bytes(b, 0), d1 = s->at[k] - lane_bytes(b, 1);
        lanes d2 = s->at[k] - lane_bytes(b, 2), d3 = s->at[k] - lane_bytes(b, 3);
        s0 += s->w[k] * d0 * d0;
        s1 += s->w[k] * d1 * d1;
        s2 += s->w[k] * d2 * d2;
        s3 += s->w[k] * d3 * d3;
    }
    lanes least = all_lanes(s->least);
    int_lanes any = (s0 < least) | (s1 < least) | (s2 < least) | (s3 < least);
    if (!(any[0] | any[1] | any[2] | any[3]))
        return;
    float sums[RUN];
    memcpy(sums, &s0, sizeof s0);
    memcpy(sums + 4, &s1, sizeof s1);
    memcpy(sums + 8, &s2, sizeof s2);
    memcpy(sums + 12, &s3, sizeof s3);
    for (int i = 0; i < RUN; i++)
        if (sums[i] < s->least) {
            s->least = sums[i];
            s->found = run * RUN + i;
        }
}

/* Puts the smaller one first. */
static inline void order(int32_t *a, int32_t *b)
{
    int32_t x = *a, y = *b;
    *a = x < y ? x : y;
    *b = x < y ? y : x;
}

/* Bounds of a node's children, ascending; the child's number is in the two lowest bits (bounds are not negative, so
 * their bits are ordered as they are). */
static inline void bound_children(const struct nearest *t, int n_dim, int node, const struct search *s,
                                  int32_t key[WAYS])
{
    const float *box = t->boxes + node * n_dim * 2 * WAYS;
    lanes sum = all_lanes(0);
    for (int k = 0; k < n_dim; k++, box += 2 * WAYS) {
        lanes off = s->at[k] - load_lanes(box);
        off = (lanes)((int_lanes)off & INT32_MAX) - load_lanes(box + WAYS);
        off = (lanes)((int_lanes)off & (off > 0)); /* inside: 0 */
        sum += s->w_box[k] * off * off;
    }
    int_lanes keys = ((int_lanes)sum & ~3) | (int_lanes){0, 1, 2, 3};
    memcpy(key, &keys, sizeof keys);
    order(&key[0], &key[1]);
    order(&key[2], &key[3]);
    order(&key[0], &key[2]);
    order(&key[1], &key[3]);
    order(&key[1], &key[2]);
}

static inline float key_bound(int32_t key)
{
    float bound;
    key &= ~3;
    memcpy(&bound, &key, sizeof bound);
    return bound;
}

static inline int find(const struct nearest *t, int n_dim, int n_run, const float *at, const float *w, float stretch,
                       float *least)
{
    struct open_node open[WAYS * MAX_DEPTH];
    struct search s = {.least = *least, .found = -1};
    int32_t key[WAYS];
    for (int k = 0; k < n_dim; k++) {
        s.at[k] = all_lanes(at[k]);
        s.w[k] = all_lanes(w[k]);
        s.w_box[k] = all_lanes(w[k] * stretch);
    }
    open[0] = (struct open_node){0, 0};
    for (int n_open = 1; n_open > 0;) {
        struct open_node next = open[--n_open];
        if (next.bound >= s.least)
            continue;
        bound_children(t, n_dim, next.node, &s, key);
        int child = WAYS * next.node + 1;
        if (child >= t->n_inner) {
            for (int c = 0; c < WAYS && key_bound(key[c]) < s.least; c++)
                for (int r = 0; r < n_run; r++)
                    look_at_run(t, n_dim, (child + (key[c] & 3) - t->n_inner) * n_run + r, &s);
            continue;
        }
        for (int c = WAYS - 1; c >= 0; c--) { /* the nearest last */
            open[n_open] = (struct open_node){key_bound(key[c]), child + (key[c] & 3)};
            n_open += open[n_open].bound < s.least;
        }
    }
    *least = s.least;
    return s.found < 0 ? -1 : t->ids[s.found];
}

int nearest_find(const struct nearest *t, const float *at, const float *w, float stretch, float *least)
{
    return t->n_dim == 8 ? find(t, 8, 1, at, w, stretch, least) : find(t, 4, 2, at, w, stretch, least);
}
