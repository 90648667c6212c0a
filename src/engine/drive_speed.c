/* How fast experts come from the drives of this process. */
#include "base/clock.h"
#include "base/random.h"
#include "engine/engine_internal.h"
#include "experts/read_requests.h"
#include "store/store.h"

enum { N_FLYING = 16 }; /* matrices at once, some five experts: what a token may lack in a layer */
static const int64_t measure_ns = 100 * 1000 * 1000;

struct drive_speed {
    struct store *store;
    struct store_queue *queue;
    struct random random;
    struct store_read reads[N_FLYING];
    char *room; /* of the reads, one after the other */
    size_t room_bytes;
};

/* Room for any of the matrices; 0: there are no routed experts. */
static size_t most_room(const struct store *s)
{
    size_t most = 0;
    for (int i = 0; i < store_n_layers(s); i++)
        for (int j = 0; j < EXPERT_N_MATRIX && store_get_layer(s, i)->n_expert; j++) {
            size_t n = read_matrix_room(&store_get_layer(s, i)->part[j]);
            most = n > most ? n : most;
        }
    return most;
}

/* Begins to read any matrix of any expert. */
static void begin_read(struct drive_speed *d, struct store_read *r)
{
    const struct store_layer *l;
    struct store_blob blob;
    int layer;
    do {
        layer = (int)(random_u32(&d->random) % (uint32_t)store_n_layers(d->store));
        l = store_get_layer(d->store, layer);
    } while (!l->n_expert);
    store_expert_blob(d->store, layer, (int)(random_u32(&d->random) % (uint32_t)l->n_expert), &blob);
    const struct store_blob_part *p = &blob.part[random_u32(&d->random) % EXPERT_N_MATRIX];
    *r = (struct store_read){.file = p->file,
                             .offset = p->offset,
                             .n_bytes = p->n_bytes,
                             .buf = d->room + (size_t)(r - d->reads) * d->room_bytes};
    store_queue_submit(d->queue, &r, 1);
}

/* Bytes a second; 0: a read failed. */
static double read_randomly(struct drive_speed *d)
{
    double n_bytes = 0;
    bool ok = true;
    int64_t begin_ns = clock_ns();
    for (int i = 0; i < N_FLYING; i++)
        begin_read(d, &d->reads[i]);
    for (int n_flying = N_FLYING; n_flying > 0; n_flying--) {
        struct store_read *r;
        store_queue_collect(d->queue, &r, 1, true);
        ok = ok && !r->failure;
        n_bytes += (double)r->n_bytes;
        if (!ok || clock_ns() - begin_ns > measure_ns)
            continue; /* what is in flight is waited for */
        begin_read(d, r);
        n_flying++;
    }
    return ok ? n_bytes * 1e9 / (double)(clock_ns() - begin_ns) : 0;
}

double engine_drive_speed(const moebius_engine *g)
{
    struct drive_speed d = {.store = g->store, .random = random_seed((uint64_t)clock_ns())};
    struct err e;
    double speed = 0;
    d.room_bytes = most_room(d.store);
    if (d.room_bytes == 0)
        return 0;
    d.room = mem_try_map(N_FLYING * d.room_bytes, MEM_SCRATCH);
    if (d.room && store_queue_open(&d.queue, d.store, NULL, &e) == ERR_OK)
        speed = read_randomly(&d);
    store_queue_close(&d.queue);
    if (d.room)
        mem_unmap(d.room, N_FLYING * d.room_bytes, MEM_SCRATCH);
    return speed;
}
