#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "base/json_text.h"
#include "jobs/inspect_internal.h"

/* In all of this file: a NULL from jansson (no memory) is passed on and fails in the end, where the object
 * that it should have gone to is NULL, too, or lacks it; `ok` collects that. */
enum { ARRAY_SHOWN = 16 };

struct out_json {
    bool ok;
};

static json_t *keep(struct out_json *o, json_t *v)
{
    o->ok = o->ok && v;
    return v;
}

/* Puts v, whose reference is taken, under a key that is valid UTF-8. */
static void set(struct out_json *o, json_t *object, const char *key, json_t *v)
{
    o->ok = json_object_set_new(object, key, v) == 0 && o->ok; /* fails for NULL values, too */
}

static void append(struct out_json *o, json_t *array, json_t *v)
{
    o->ok = json_array_append_new(array, v) == 0 && o->ok;
}

static json_t *string(struct out_json *o, const char *s, size_t n)
{
    return keep(o, json_text(s, n));
}

static json_t *text(struct out_json *o, const char *s)
{
    return string(o, s, strlen(s));
}

/* JSON has no number for NaN and the infinities: null. */
static json_t *real(struct out_json *o, double v)
{
    return keep(o, isfinite(v) ? json_real(v) : json_null());
}

/* jansson's integers are signed: the few beyond 2^63 are given as decimal strings. */
static json_t *integer(struct out_json *o, uint64_t v)
{
    char digits[24];
    if (v <= INT64_MAX)
        return keep(o, json_integer((json_int_t)v));
    snprintf(digits, sizeof digits, "%" PRIu64, v);
    return text(o, digits);
}

static json_t *scalar(struct out_json *o, const struct gguf_value *v)
{
    switch (v->type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: return keep(o, json_integer(v->i));
    case GGUF_F32:
    case GGUF_F64: return real(o, v->f);
    case GGUF_BOOL: return keep(o, json_boolean(v->u));
    case GGUF_STRING: return string(o, v->str.s, v->str.n);
    default: return integer(o, v->u);
    }
}

/* {"element_type", "count", "values"}: the first ARRAY_SHOWN elements. */
static json_t *value_array(struct out_json *o, const struct gguf_value *v)
{
    json_t *object = keep(o, json_object()), *values = keep(o, json_array());
    for (uint64_t i = 0; i < v->arr.n && i < ARRAY_SHOWN; i++) {
        const struct gguf_value x = gguf_array_at(v, i);
        append(o, values, x.type == GGUF_ARRAY ? value_array(o, &x) : scalar(o, &x));
    }
    set(o, object, "element_type", text(o, gguf_value_type_name(v->arr.type)));
    set(o, object, "count", integer(o, v->arr.n));
    set(o, object, "values", values);
    return object;
}

/* KEY: {"type", "value"}, or for an array what value_array gives and "type". */
static json_t *metadata(struct out_json *o, const struct gguf *g)
{
    json_t *all = keep(o, json_object());
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        const struct gguf_kv *kv = gguf_kv_at(g, i);
        json_t *key = string(o, kv->key.s, kv->key.n);
        json_t *v = kv->value.type == GGUF_ARRAY ? value_array(o, &kv->value) : keep(o, json_object());
        set(o, v, "type", text(o, gguf_value_type_name(kv->value.type)));
        if (kv->value.type != GGUF_ARRAY)
            set(o, v, "value", scalar(o, &kv->value));
        set(o, all, json_string_value(key), v);
        json_decref(key);
    }
    return all;
}

static json_t *tensor(struct out_json *o, const struct gguf_tensor *t)
{
    json_t *object = keep(o, json_object()), *shape = keep(o, json_array());
    for (int d = 0; d < t->n_dims; d++)
        append(o, shape, integer(o, t->ne[d]));
    set(o, object, "name", text(o, t->name));
    set(o, object, "type", text(o, inspect_type_name(t->type_id, t->info).s));
    set(o, object, "type_id", integer(o, t->type_id));
    set(o, object, "shape", shape);
    set(o, object, "bytes", t->info ? integer(o, t->n_bytes) : keep(o, json_null()));
    set(o, object, "file", integer(o, (uint64_t)t->file));
    set(o, object, "offset", integer(o, t->offset));
    return object;
}

static json_t *tensors(struct out_json *o, const struct gguf *g)
{
    json_t *all = keep(o, json_array());
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        append(o, all, tensor(o, gguf_tensor_at(g, i)));
    return all;
}

static json_t *types(struct out_json *o, const struct model_facts *f)
{
    json_t *all = keep(o, json_array());
    for (size_t i = 0; i < f->n_types; i++) {
        const struct model_type_facts *t = &f->types[i];
        json_t *v = keep(o, json_object());
        set(o, v, "type", text(o, inspect_type_name(t->type_id, t->info).s));
        set(o, v, "type_id", integer(o, t->type_id));
        set(o, v, "tensors", integer(o, t->n_tensors));
        set(o, v, "weights", integer(o, t->n_weights));
        set(o, v, "bytes", t->info ? integer(o, t->n_bytes) : keep(o, json_null()));
        set(o, v, "bits_per_weight",
            t->info ? real(o, 8.0 * (double)t->n_bytes / (double)t->n_weights) : keep(o, json_null()));
        append(o, all, v);
    }
    return all;
}

static json_t *layers(struct out_json *o, const struct model_facts *f)
{
    json_t *all = keep(o, json_array());
    for (uint32_t i = 0; i < f->n_layer; i++) {
        const struct model_layer_facts *l = &f->layers[i];
        json_t *v = keep(o, json_object());
        set(o, v, "experts", integer(o, l->n_expert));
        set(o, v, "experts_used", integer(o, l->n_expert_used));
        set(o, v, "expert_width", integer(o, l->n_ff_exp));
        set(o, v, "shared_expert_width", integer(o, l->n_ff_shexp));
        set(o, v, "nextn", keep(o, json_boolean(l->is_nextn)));
        set(o, v, "expert_bytes", integer(o, l->expert_bytes));
        set(o, v, "routed_bytes", integer(o, l->routed_bytes));
        set(o, v, "other_bytes", integer(o, l->other_bytes));
        append(o, all, v);
    }
    return all;
}

static json_t *by_use(struct out_json *o, const uint64_t n_bytes[GGUF_N_USE])
{
    json_t *all = keep(o, json_object());
    for (int u = 0; u < GGUF_N_USE; u++) {
        char key[32];
        snprintf(key, sizeof key, "%s", gguf_use_name((enum gguf_use)u));
        for (char *c = key; *c; c++)
            *c = *c == ' ' ? '_' : *c;
        set(o, all, key, integer(o, n_bytes[u]));
    }
    return all;
}

static json_t *model(struct out_json *o, const struct model_facts *f)
{
    json_t *m = keep(o, json_object());
    set(o, m, "architecture", string(o, f->architecture.s, f->architecture.n));
    set(o, m, "name", string(o, f->name.s, f->name.n));
    set(o, m, "layers", integer(o, f->n_layer));
    set(o, m, "layers_dense", integer(o, f->n_layer_dense));
    set(o, m, "layers_moe", integer(o, f->n_layer_moe));
    set(o, m, "layers_nextn", integer(o, f->n_layer_nextn));
    set(o, m, "layers_mixing", integer(o, f->n_layer_mixing));
    set(o, m, "embedding_width", integer(o, f->n_embd));
    set(o, m, "vocabulary", integer(o, f->n_vocab));
    set(o, m, "trained_context", integer(o, f->n_ctx_train));
    set(o, m, "experts", integer(o, f->n_expert));
    set(o, m, "experts_used", integer(o, f->n_expert_used));
    set(o, m, "experts_shared", integer(o, f->n_expert_shared));
    set(o, m, "expert_width_min", integer(o, f->n_ff_exp_min));
    set(o, m, "expert_width_max", integer(o, f->n_ff_exp_max));
    set(o, m, "shared_expert_width_min", integer(o, f->n_ff_shexp_min));
    set(o, m, "shared_expert_width_max", integer(o, f->n_ff_shexp_max));
    set(o, m, "output_is_tied", keep(o, json_boolean(f->is_tied)));
    set(o, m, "expert_bytes_min", integer(o, f->expert_bytes_min));
    set(o, m, "expert_bytes_max", integer(o, f->expert_bytes_max));
    set(o, m, "weights", integer(o, f->n_weights));
    set(o, m, "bytes", integer(o, f->n_bytes));
    set(o, m, "bytes_by_use", by_use(o, f->use_bytes));
    set(o, m, "ngram_table_bytes", integer(o, f->ngram_bytes));
    set(o, m, "resident_bytes", integer(o, f->resident_bytes));
    set(o, m, "token_bytes", integer(o, f->token_bytes));
    set(o, m, "token_bytes_by_use", by_use(o, f->token_use_bytes));
    set(o, m, "unknown_type_tensors", integer(o, f->n_unknown));
    set(o, m, "by_layer", layers(o, f));
    return m;
}

static json_t *files(struct out_json *o, const struct gguf *g)
{
    json_t *all = keep(o, json_array());
    for (int i = 0; i < gguf_n_files(g); i++) {
        json_t *v = keep(o, json_object());
        set(o, v, "path", text(o, gguf_file_path(g, i)));
        set(o, v, "bytes", integer(o, gguf_file_bytes(g, i)));
        append(o, all, v);
    }
    return all;
}

/* Writes and releases `root`. 9 digits tell any two 32-bit floats apart. */
static err_code write_json(FILE *out, struct out_json *o, json_t *root, struct err *e)
{
    err_code code = ERR_OK;
    if (!o->ok)
        code = err_set(e, ERR_NOMEM, "out of memory: building JSON");
    else if (json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 || fputc('\n', out) == EOF)
        code = err_set(e, ERR_IO, "writing JSON: %s", strerror(errno));
    json_decref(root);
    return code;
}

static json_t *boolean(struct out_json *o, bool v)
{
    return keep(o, json_boolean(v));
}

static json_t *mixing(struct out_json *o, const struct layer *l)
{
    json_t *v = keep(o, json_object());
    const struct attention *a = &l->attn;
    const struct recurrent *d = &l->recurrent;
    if (!l->attn_norm.buffer) {
        set(o, v, "kind", text(o, "none"));
        return v;
    }
    if (l->is_recurrent) {
        set(o, v, "kind", text(o, inspect_recurrence(d->kind)));
        set(o, v, "convolution_taps", integer(o, (uint64_t)d->n_tap));
        if (d->kind == RECURRENCE_CONV)
            return v;
        set(o, v, "key_heads", integer(o, (uint64_t)d->n_head_k));
        set(o, v, "key_width", integer(o, (uint64_t)d->dk));
        set(o, v, "value_heads", integer(o, (uint64_t)d->n_head_v));
        set(o, v, "value_width", integer(o, (uint64_t)d->dv));
        set(o, v, "decays_per_head",
            integer(o, (uint64_t)(d->kind == RECURRENCE_SELECTIVE ? d->dk * d->dv
                                  : d->kind == RECURRENCE_FIXED   ? 1
                                                                  : d->n_alpha / d->n_head_v)));
        return v;
    }
    set(o, v, "kind",
        text(o, a->is_latent       ? "latent attention"
                : a->is_compressed ? "attention with a compressed cache"
                                   : "attention"));
    set(o, v, "heads", integer(o, (uint64_t)a->n_head));
    set(o, v, "kv_heads", integer(o, (uint64_t)a->n_head_kv));
    set(o, v, "key_width", integer(o, (uint64_t)(a->is_latent ? a->latent.n_nope + a->n_rot : a->head_dim)));
    set(o, v, "value_width", integer(o, (uint64_t)(a->is_latent ? a->latent.n_value : a->head_dim_v)));
    set(o, v, "latent_width", integer(o, (uint64_t)a->latent.n_latent));
    set(o, v, "query_rank", integer(o, (uint64_t)a->n_q_latent));
    set(o, v, "positions_chosen", integer(o, (uint64_t)(a->is_compressed ? 0 : model_index_reach(&a->index))));
    set(o, v, "positions_per_block", integer(o, (uint64_t)a->index.block));
    set(o, v, "positions_per_run", integer(o, (uint64_t)a->index.run));
    set(o, v, "positions_per_entry", integer(o, (uint64_t)(a->is_compressed ? a->compressed.ratio : 0)));
    set(o, v, "entries_chosen", integer(o, (uint64_t)(a->is_compressed ? a->index.n_chosen : 0)));
    set(o, v, "rotated", integer(o, a->rope_table < 0 ? 0 : (uint64_t)a->n_rot));
    set(o, v, "window", integer(o, (uint64_t)a->window));
    set(o, v, "chunked", boolean(o, a->chunked));
    set(o, v, "gated", boolean(o, a->gate));
    set(o, v, "sinks", boolean(o, a->sinks.buffer));
    set(o, v, "cache_of_layer", integer(o, (uint64_t)a->kv_layer));
    return v;
}

static json_t *feed_forward(struct out_json *o, const struct layer *l)
{
    static const char *const scores[] = {[ROUTE_SOFTMAX] = "softmax",
                                         [ROUTE_SIGMOID] = "sigmoid",
                                         [ROUTE_SOFTMAX_CHOSEN] = "softmax of the chosen",
                                         [ROUTE_SQRT_SOFTPLUS] = "root of softplus"};
    json_t *v = keep(o, json_object());
    const struct moe_layer *y = &l->moe;
    set(o, v, "dense_width", integer(o, (uint64_t)l->ffn.n_ff));
    set(o, v, "experts", integer(o, (uint64_t)y->n_expert));
    if (!l->is_moe)
        return v;
    set(o, v, "experts_used", integer(o, (uint64_t)y->n_used));
    set(o, v, "scores", text(o, scores[y->score]));
    set(o, v, "chosen_by_token", boolean(o, y->token_experts.buffer));
    set(o, v, "choice_bias", boolean(o, y->choice_bias.buffer));
    set(o, v, "groups", integer(o, (uint64_t)y->n_group));
    set(o, v, "groups_used", integer(o, (uint64_t)y->n_group_used));
    set(o, v, "weights_normalised", boolean(o, y->norm_weights));
    set(o, v, "weights_scale", real(o, (double)y->scale));
    set(o, v, "shared_expert_width", integer(o, (uint64_t)y->n_ff_shared));
    set(o, v, "shared_expert_gated", boolean(o, y->shared_gate_inp));
    set(o, v, "small_experts", integer(o, (uint64_t)y->n_adjugate));
    set(o, v, "small_expert_width", integer(o, (uint64_t)y->n_ff_adjugate));
    set(o, v, "latent_width", integer(o, (uint64_t)(y->latent_down ? y->n_latent : 0)));
    return v;
}

/* One object a group: its facts, its layers, and the same in words. */
static json_t *groups(struct out_json *o, const struct inspect_layout *l, const struct inspect_groups *g,
                      json_t *facts(struct out_json *o, const struct layer *l))
{
    json_t *all = keep(o, json_array());
    for (int k = 0; k < g->n; k++) {
        int64_t i = inspect_group_next(l, g, k, 0);
        json_t *v = facts(o, &l->model->layers[i]), *members = keep(o, json_array());
        for (; i < l->model->n_layer; i = inspect_group_next(l, g, k, i + 1))
            append(o, members, integer(o, (uint64_t)i));
        set(o, v, "layers", members);
        set(o, v, "words", text(o, g->words[k]->s));
        append(o, all, v);
    }
    return all;
}

/* How the model works, or {"error": the sentence that running it would end with}. */
static json_t *layout(struct out_json *o, const struct inspect_layout *l)
{
    json_t *v = keep(o, json_object());
    if (!l->model) {
        set(o, v, "error", text(o, l->error.text));
        return v;
    }
    set(o, v, "mixing", groups(o, l, &l->mixing, mixing));
    set(o, v, "feed_forward", groups(o, l, &l->feed_forward, feed_forward));
    set(o, v, "around_the_layers", text(o, l->around.s));
    set(o, v, "warning", l->warning[0] ? text(o, l->warning) : keep(o, json_null()));
    set(o, v, "kv_bytes_per_position", integer(o, l->kv_bytes));
    set(o, v, "kv_bytes_per_position_in_window", integer(o, l->window_kv_bytes));
    set(o, v, "window", integer(o, (uint64_t)l->window));
    set(o, v, "recurrent_state_bytes", integer(o, l->recurrent_bytes));
    return v;
}

/* The ids of the experts that a place has in a MoE layer. */
static json_t *part(struct out_json *o, const struct inspect_layout *l, int place, int layer)
{
    json_t *v = keep(o, json_array());
    for (int64_t i = 0; i < l->model->expert_layers[layer].n_expert; i++)
        if (inspect_division_has(&l->division, place, layer, i))
            append(o, v, integer(o, (uint64_t)i));
    return v;
}

static json_t *place(struct out_json *o, const struct inspect_layout *l, int i)
{
    uint64_t n_expert, n_bytes;
    json_t *v = keep(o, json_object()), *layers = keep(o, json_array());
    inspect_division_sum(&l->division, l->model, i, &n_expert, &n_bytes);
    for (int k = 0; k < l->model->n_moe_layer; k++) {
        json_t *layer = keep(o, json_object());
        set(o, layer, "layer", integer(o, (uint64_t)l->model->expert_layers[k].index));
        set(o, layer, "experts", part(o, l, i, k));
        append(o, layers, layer);
    }
    set(o, v, "n_thread", integer(o, (uint64_t)l->division.asked.devices[i].n_threads));
    set(o, v, "is_cache", keep(o, json_boolean(i == 0 && l->division.division.has_cache)));
    set(o, v, "n_expert", integer(o, n_expert));
    set(o, v, "n_replica", integer(o, inspect_division_n_replica(&l->division, i)));
    set(o, v, "bytes", integer(o, n_bytes));
    set(o, v, "layers", layers);
    return v;
}

static json_t *places(struct out_json *o, const struct inspect_layout *l)
{
    json_t *v = keep(o, json_array());
    for (int i = 0; i < l->division.division.n_place; i++)
        append(o, v, place(o, l, i));
    return v;
}

err_code inspect_json_model(FILE *out, const struct gguf *g, const struct model_facts *f,
                            const struct inspect_layout *l, struct err *e)
{
    struct out_json o = {.ok = true};
    json_t *root = keep(&o, json_object());
    set(&o, root, "files", files(&o, g));
    set(&o, root, "gguf_version", integer(&o, (uint64_t)gguf_version(g)));
    set(&o, root, "alignment", integer(&o, gguf_alignment(g)));
    set(&o, root, "metadata", metadata(&o, g));
    set(&o, root, "model", model(&o, f));
    set(&o, root, "layout", layout(&o, l));
    if (l->division.division.n_place)
        set(&o, root, "places", places(&o, l));
    set(&o, root, "types", types(&o, f));
    set(&o, root, "tensors", tensors(&o, g));
    return write_json(out, &o, root, e);
}

err_code inspect_json_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                             const struct inspect_stats *stats, struct err *e)
{
    struct out_json o = {.ok = true};
    json_t *root = tensor(&o, t), *first = keep(&o, json_array());
    bool any = stats->n_values > stats->n_nan + stats->n_inf;
    for (int i = 0; i < stats->n_first; i++)
        append(&o, first, real(&o, (double)stats->first[i]));
    set(&o, root, "path", text(&o, gguf_file_path(g, t->file)));
    if (t->info) {
        set(&o, root, "values", integer(&o, stats->n_values));
        set(&o, root, "first_values", first);
        set(&o, root, "nan", integer(&o, stats->n_nan));
        set(&o, root, "inf", integer(&o, stats->n_inf));
        set(&o, root, "min", any ? real(&o, stats->min) : keep(&o, json_null()));
        set(&o, root, "max", any ? real(&o, stats->max) : keep(&o, json_null()));
        set(&o, root, "mean", any ? real(&o, stats->mean) : keep(&o, json_null()));
        set(&o, root, "std", any ? real(&o, stats->std) : keep(&o, json_null()));
    } else {
        json_decref(first);
    }
    return write_json(out, &o, root, e);
}
