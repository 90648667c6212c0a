#include "server/expert_picture.h"

#include <jansson.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/mem.h"

enum { MADE_EVERY_NS = 250 * 1000 * 1000 };

struct expert_picture {
    /* only the driving thread uses these */
    int n_layer;
    int64_t n_expert;  /* of the layer with the most experts */
    uint64_t *before;  /* [n_layer][n_expert] counts of choices in the previous picture */
    uint64_t *chosen;  /* [n_expert] counts of choices in the current layer */
    bool *in_memory;   /* [n_expert] whether each expert of the current layer is in memory */
    bool is_wanted;    /* as of the last step */
    int64_t made_ns;   /* when the last picture was made */
    uint64_t n_pass;   /* how many passes there had been then */
    struct bytes next; /* the picture that is being made */

    pthread_mutex_t lock; /* protects what follows */
    uint64_t n_load;      /* how often the model was loaded */
    uint64_t n_made;      /* pictures since it was loaded last */
    struct bytes shape;   /* the `model` event; empty: the model is not loaded */
    struct bytes now;     /* the last `experts` event */
};

err_code expert_picture_open(struct expert_picture **out, struct err *e)
{
    struct expert_picture *p = *out = mem_calloc(1, sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, "a picture of experts");
    pthread_mutex_init(&p->lock, NULL);
    return ERR_OK;
}

void expert_picture_close(struct expert_picture **picture)
{
    struct expert_picture *p = *picture;
    if (!p)
        return;
    *picture = NULL;
    expert_picture_end(p);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* ---- the model ------------------------------------------------------------------------------------------------- */

static err_code make_room(struct expert_picture *p, const moebius_engine *engine, struct err *e)
{
    p->n_layer = moebius_n_moe_layer(engine);
    p->n_expert = 1;
    for (int i = 0; i < p->n_layer; i++) {
        int64_t n = moebius_moe_layer_at(engine, i).n_expert;
        p->n_expert = n > p->n_expert ? n : p->n_expert;
    }
    size_t n_all = (size_t)(p->n_layer + 1) * (size_t)p->n_expert;
    p->before = mem_calloc(n_all, sizeof *p->before);
    p->chosen = mem_calloc((size_t)p->n_expert, sizeof *p->chosen);
    p->in_memory = mem_calloc((size_t)p->n_expert, sizeof *p->in_memory);
    return p->before && p->chosen && p->in_memory ? ERR_OK : err_nomem(e, n_all * sizeof *p->before, "choices");
}

static json_t *describe_layers(const moebius_engine *engine)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < moebius_n_moe_layer(engine); i++) {
        const moebius_moe_layer l = moebius_moe_layer_at(engine, i);
        bad |= json_array_append_new(list, json_pack("{s:I, s:I, s:I}", "n_expert", (json_int_t)l.n_expert, "n_used",
                                                     (json_int_t)l.n_used, "expert_bytes", (json_int_t)l.slot_bytes));
    }
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *describe_places(const moebius_engine *engine)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < moebius_n_place(engine); i++) {
        moebius_place place;
        bool is_there = moebius_place_at(engine, i, &place, NULL) == MOEBIUS_OK;
        bad |= json_array_append_new(list, json_string(is_there ? place.name : "a place that does not answer"));
    }
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

static err_code add_event(struct bytes *out, const char *name, json_t *data, struct err *e)
{
    char *text = data ? json_write(data, JSON_COMPACT, NULL) : NULL;
    err_code code = text ? bytes_print(out, e, "event: %s\ndata: %s\n\n", name, text) : err_nomem(e, 0, "an event");
    mem_free(text);
    json_decref(data);
    return code;
}

err_code expert_picture_begin(struct expert_picture *p, moebius_engine *engine, const char *name, struct err *e)
{
    struct bytes shape = {0};
    TRY(make_room(p, engine, e));
    err_code code = add_event(&shape, "model",
                              json_pack("{s:s, s:o, s:o}", "model", name, "places", describe_places(engine), "layers",
                                        describe_layers(engine)),
                              e);
    if (code != ERR_OK) {
        bytes_close(&shape);
        return code;
    }
    pthread_mutex_lock(&p->lock);
    p->n_load++;
    p->n_made = 0;
    p->shape = shape;
    pthread_mutex_unlock(&p->lock);
    return ERR_OK;
}

void expert_picture_end(struct expert_picture *p)
{
    pthread_mutex_lock(&p->lock);
    bytes_close(&p->shape);
    bytes_close(&p->now);
    pthread_mutex_unlock(&p->lock);
    bytes_close(&p->next);
    mem_free(p->before);
    mem_free(p->chosen);
    mem_free(p->in_memory);
    p->before = p->chosen = NULL;
    p->in_memory = NULL;
    p->is_wanted = false;
}

/* ---- pictures -------------------------------------------------------------------------------------------------- */

static err_code put_figures(struct bytes *out, const moebius_counters *k, const struct texts_stats *t, int64_t now_ns,
                            struct err *e)
{
    return bytes_print(out, e,
                       "\"ms\":%lld,\"running\":%zu,\"waiting\":%zu,\"prompt_tokens\":%llu,\"cached_tokens\":%llu,"
                       "\"answer_tokens\":%llu,\"hits\":%llu,\"misses\":%llu,\"read_bytes\":%llu,\"stall_ms\":%lld,"
                       "\"expert_bytes\":%llu,\"expert_all_bytes\":%llu",
                       (long long)(now_ns / 1000000), t->n_running, t->n_waiting, (unsigned long long)t->n_prompt,
                       (unsigned long long)t->n_cached, (unsigned long long)t->n_answer,
                       (unsigned long long)k->n_expert_hit, (unsigned long long)k->n_expert_miss,
                       (unsigned long long)k->n_expert_read_bytes, (long long)(k->stall_ns / 1000000),
                       (unsigned long long)k->expert_bytes, (unsigned long long)k->expert_all_bytes);
}

/* Where an expert is: '-' if it is in no memory, else the number of the first place that has it, as '0' to '9', 'A' to
 * 'Z', 'a' to 'z', and then '+'. */
static char where_is(uint64_t places, bool in_memory)
{
    static const char names[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t others = places & ~(uint64_t)1;
    if (in_memory || !others)
        return in_memory ? '0' : '-';
    size_t i = 1;
    while (!(others >> i & 1))
        i++;
    return i < sizeof names - 1 ? names[i] : '+';
}

/* Adds, for each layer, an array of choices since the previous picture, and a string that says where the experts are.
 */
static err_code put_layers(struct expert_picture *p, const moebius_engine *engine, struct bytes *chosen,
                           struct bytes *where, struct err *e)
{
    for (int i = 0; i < p->n_layer; i++) {
        int64_t n = moebius_moe_layer_at(engine, i).n_expert;
        uint64_t *before = p->before + i * p->n_expert;
        moebius_engine_experts(engine, i, p->chosen, p->in_memory);
        bytes_put_text(where, i ? ",\"" : "\"");
        for (int64_t j = 0; j < n; j++) {
            const char *mark = j ? "," : i ? "],[" : "[";
            TRY(bytes_print(chosen, e, "%s%llu", mark, (unsigned long long)(p->chosen[j] - before[j])));
            bytes_put_char(where, where_is(moebius_expert_places(engine, i, j), p->in_memory[j]));
            before[j] = p->chosen[j];
        }
        bytes_put_char(where, '"');
    }
    bytes_put_text(chosen, p->n_layer ? "]" : "");
    return where->is_short || chosen->is_short ? err_nomem(e, where->n, "an event") : ERR_OK;
}

static err_code make(struct expert_picture *p, const moebius_engine *engine, const struct texts_stats *stats,
                     struct err *e)
{
    struct bytes where = {0};
    const moebius_counters counters = moebius_engine_counters(engine);
    bytes_clear(&p->next);
    TRY(bytes_add_text(&p->next, "event: experts\ndata: {", e));
    TRY(put_figures(&p->next, &counters, stats, p->made_ns, e));
    TRY(bytes_add_text(&p->next, ",\"chosen\":[", e));
    err_code code = put_layers(p, engine, &p->next, &where, e);
    if (code == ERR_OK)
        code = bytes_print(&p->next, e, "],\"where\":[%s]}\n\n", bytes_text(&where));
    bytes_close(&where);
    return code;
}

/* Replaces the last picture by the one that was made. */
static void publish(struct expert_picture *p)
{
    pthread_mutex_lock(&p->lock);
    struct bytes old = p->now;
    p->now = p->next;
    p->next = old;
    p->n_made++;
    pthread_mutex_unlock(&p->lock);
}

void expert_picture_step(struct expert_picture *p, moebius_engine *engine, const struct texts_stats *stats,
                         bool is_wanted, bool is_last)
{
    bool has_begun = is_wanted && !p->is_wanted;
    int64_t now_ns = clock_ns();
    struct err e;
    if (is_wanted != p->is_wanted)
        moebius_engine_count_experts(engine, is_wanted);
    p->is_wanted = is_wanted;
    bool is_time = has_begun || (is_last ? stats->n_pass != p->n_pass : now_ns - p->made_ns >= MADE_EVERY_NS);
    if (!is_wanted || !is_time)
        return;
    p->made_ns = now_ns;
    p->n_pass = stats->n_pass;
    if (make(p, engine, stats, &e) == ERR_OK) /* without memory there is one picture less */
        publish(p);
}

err_code expert_picture_tell(struct expert_picture *p, struct expert_sight *sight, struct bytes *out, struct err *e)
{
    err_code code = ERR_OK;
    pthread_mutex_lock(&p->lock);
    bool is_new = sight->picture != p || sight->n_load != p->n_load;
    if (p->shape.n && is_new)
        code = bytes_add(out, p->shape.s, p->shape.n, e);
    if (code == ERR_OK && p->now.n && p->n_made && (is_new || sight->n_made != p->n_made))
        code = bytes_add(out, p->now.s, p->now.n, e);
    if (p->shape.n)
        *sight = (struct expert_sight){p, p->n_load, p->n_made};
    pthread_mutex_unlock(&p->lock);
    return code;
}
