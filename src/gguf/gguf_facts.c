#include "gguf/gguf_facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/model_limits.h"
#include "gguf/gguf_internal.h"

enum { MAX_TYPES = 256 };

const char *gguf_use_name(enum gguf_use use)
{
    static const char *const names[GGUF_N_USE] = {"embedding",      "output",       "attention",
                                                  "dense ffn",      "router",       "shared experts",
                                                  "routed experts", "nextn layers", "other"};
    return names[use];
}

/* Reads an integer key of the architecture ("ARCH.SUFFIX"); leaves *out unchanged when it is absent. */
static err_code arch_u32(const struct gguf *g, const struct model_facts *f, const char *suffix, uint32_t *out,
                         struct err *e)
{
    char key[160];
    snprintf(key, sizeof key, "%.64s.%s", f->architecture.s, suffix);
    return gguf_opt_u32(g, key, out, e);
}

static err_code read_metadata(struct model_facts *f, const struct gguf *g, uint32_t *n_expert_used, struct err *e)
{
    const void *tokens;
    uint64_t n_vocab;
    uint32_t n_nextn = 0;
    TRY(gguf_opt_string(g, "general.architecture", &f->architecture, e));
    TRY(gguf_opt_string(g, "general.name", &f->name, e));
    TRY(gguf_opt_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, &n_vocab, e));
    f->n_vocab = (uint32_t)n_vocab;
    TRY(arch_u32(g, f, "block_count", &f->n_layer, e));
    if (f->n_layer > LIMIT_LAYERS)
        return err_set(e, ERR_LIMIT, "%s: key \"%s.block_count\" is %" PRIu32 ", expected at most %d",
                       gguf_file_path(g, 0), gguf_show(f->architecture.s, f->architecture.n).s, f->n_layer,
                       LIMIT_LAYERS);
    TRY(arch_u32(g, f, "nextn_predict_layers", &n_nextn, e));
    if (n_nextn > f->n_layer)
        return err_set(e, ERR_FORMAT,
                       "%s: key \"%s.nextn_predict_layers\" is %" PRIu32 ", expected at most the %" PRIu32 " layers",
                       gguf_file_path(g, 0), gguf_show(f->architecture.s, f->architecture.n).s, n_nextn, f->n_layer);
    f->n_layer_nextn = n_nextn;
    TRY(arch_u32(g, f, "embedding_length", &f->n_embd, e));
    TRY(arch_u32(g, f, "context_length", &f->n_ctx_train, e));
    TRY(arch_u32(g, f, "expert_shared_count", &f->n_expert_shared, e));
    char key[160];
    snprintf(key, sizeof key, "%.64s.expert_used_count", f->architecture.s);
    return gguf_layer_u32(g, key, n_expert_used, f->n_layer, false, e);
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* "blk.N.REST": gives N and REST; false for other names. */
static bool split_name(const char *name, uint32_t *layer, const char **rest)
{
    if (!starts_with(name, "blk.") || name[4] < '0' || name[4] > '9')
        return false;
    char *end;
    unsigned long n = strtoul(name + 4, &end, 10);
    if (*end != '.' || n >= LIMIT_LAYERS)
        return false;
    *layer = (uint32_t)n;
    *rest = end + 1;
    return true;
}

/* Whether `rest` begins with "ffn_", one of the parts, `suffix` and a dot. *part becomes the part. */
static bool is_ffn_part(const char *rest, const char *suffix, const char **part)
{
    static const char *const parts[] = {"gate_up", "gate", "up", "down"};
    if (!starts_with(rest, "ffn_"))
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(parts[i]);
        if (strncmp(rest + 4, parts[i], n) == 0 && starts_with(rest + 4 + n, suffix) &&
            rest[4 + n + strlen(suffix)] == '.') {
            *part = parts[i];
            return true;
        }
    }
    return false;
}

static enum gguf_use layer_use(const char *rest)
{
    const char *part;
    if (is_ffn_part(rest, "_exps", &part))
        return GGUF_USE_ROUTED_EXPERT;
    if (strstr(rest, "_shexp") || is_ffn_part(rest, "_chexps", &part))
        return GGUF_USE_SHARED_EXPERT;
    if (starts_with(rest, "ffn_gate_inp") || starts_with(rest, "exp_probs_b"))
        return GGUF_USE_ROUTER;
    if (is_ffn_part(rest, "", &part) || starts_with(rest, "ffn_latent_"))
        return GGUF_USE_DENSE_FFN;
    if (starts_with(rest, "attn_") || starts_with(rest, "ssm_") || starts_with(rest, "indexer"))
        return GGUF_USE_ATTENTION;
    return GGUF_USE_OTHER;
}

static enum gguf_use global_use(const char *name)
{
    if (starts_with(name, "token_embd.") || starts_with(name, "per_layer_token_embd.") ||
        starts_with(name, "position_embd."))
        return GGUF_USE_EMBEDDING;
    if (starts_with(name, "output.") || starts_with(name, "output_norm."))
        return GGUF_USE_OUTPUT;
    return GGUF_USE_OTHER;
}

enum gguf_use gguf_tensor_use(const struct gguf_tensor *t, int *layer)
{
    uint32_t n;
    const char *rest;
    bool in_layer = split_name(t->name, &n, &rest);
    *layer = in_layer ? (int)n : -1;
    return in_layer ? layer_use(rest) : global_use(t->name);
}

/* "general.architecture", empty when it is no text. */
static struct gguf_string architecture(const struct gguf *g)
{
    const struct gguf_value *v = gguf_find(g, "general.architecture");
    return v && v->type == GGUF_STRING ? v->str : (struct gguf_string){.s = ""};
}

const struct gguf_tensor *gguf_ngram_table(const struct gguf *g)
{
    char key[160];
    snprintf(key, sizeof key, "%.64s.ple.layers", architecture(g).s);
    const struct gguf_value *layers = gguf_find(g, key);
    return layers && layers->type == GGUF_ARRAY && layers->arr.n ? gguf_tensor_find(g, "per_layer_token_embd.weight")
                                                                 : NULL;
}

/* Counts a table of n-grams apart from the embedding. A token reads one row of it for each head. */
static err_code add_ngrams(struct model_facts *f, const struct gguf *g, struct err *e)
{
    const struct gguf_tensor *t = gguf_ngram_table(g);
    uint32_t most_tokens = 0, per_length = 0;
    if (!t)
        return ERR_OK;
    TRY(arch_u32(g, f, "ple.ngram_size", &most_tokens, e));
    TRY(arch_u32(g, f, "ple.heads_per_ngram", &per_length, e));
    uint64_t n_head = most_tokens > 1 ? (uint64_t)(most_tokens - 1) * per_length : 0;
    f->ngram_bytes = t->n_bytes;
    f->use_bytes[GGUF_USE_EMBEDDING] -= t->n_bytes;
    if (n_head > 1 && n_head < t->ne[1]) /* one row has been counted */
        f->token_use_bytes[GGUF_USE_EMBEDDING] += t->n_bytes / t->ne[1] * (n_head - 1);
    return ERR_OK;
}

/* The width of a feed-forward part from its weight's shape: up and gate are [n_embd, n_ff, ...], down [n_ff,
 * ...]. */
static uint32_t ffn_width(const struct gguf_tensor *t, const char *part)
{
    uint64_t n = strcmp(part, "down") == 0 ? t->ne[0] : strcmp(part, "gate_up") == 0 ? t->ne[1] / 2 : t->ne[1];
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static bool is_weight(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".weight") == 0;
}

static err_code add_routed(struct model_facts *f, struct model_layer_facts *l, const struct gguf *g,
                           const struct gguf_tensor *t, const char *rest, struct err *e)
{
    const char *part = NULL;
    (void)is_ffn_part(rest, "_exps", &part);
    uint64_t n = t->ne[t->n_dims - 1]; /* weights are 3D, biases 2D, scales 1D: the last dimension is the expert */
    if (l->n_expert == 0 && n <= UINT32_MAX)
        l->n_expert = (uint32_t)n;
    if (n != l->n_expert || (f->n_expert && n != f->n_expert))
        return err_set(e, ERR_FORMAT,
                       "%s: tensor \"%s\": its last dimension is %" PRIu64 ", expected %" PRIu32
                       ", the number of experts",
                       gguf_file_path(g, t->file), gguf_show(t->name, strlen(t->name)).s, n,
                       f->n_expert ? f->n_expert : l->n_expert);
    if (part && is_weight(t->name))
        l->n_ff_exp = ffn_width(t, part);
    l->routed_bytes += t->n_bytes;
    l->expert_bytes += t->n_bytes / n;
    return ERR_OK;
}

static int by_bytes(const void *a, const void *b)
{
    const struct model_type_facts *x = a, *y = b;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes < y->n_bytes ? 1 : -1;
    return x->type_id < y->type_id ? -1 : x->type_id > y->type_id;
}

static err_code count_types(struct model_facts *f, const struct gguf *g, struct err *e)
{
    f->types = arena_calloc(&f->arena, MAX_TYPES, sizeof *f->types);
    if (!f->types)
        return err_nomem(e, MAX_TYPES * sizeof *f->types, "a list of tensor types");
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        size_t k = 0;
        while (k < f->n_types && f->types[k].type_id != t->type_id)
            k++;
        if (k == MAX_TYPES) /* there are not so many: the file invents some */
            return err_set(e, ERR_LIMIT, "%s: tensor \"%s\" has type %" PRIu32 "; more than %d types are refused",
                           gguf_file_path(g, t->file), gguf_show(t->name, strlen(t->name)).s, t->type_id, MAX_TYPES);
        if (k == f->n_types)
            f->types[f->n_types++] = (struct model_type_facts){.type_id = t->type_id, .info = t->info};
        uint64_t n_weights = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        f->types[k].n_tensors++;
        f->types[k].n_weights += n_weights;
        f->types[k].n_bytes += t->n_bytes;
        f->n_weights += n_weights;
        f->n_bytes += t->n_bytes;
        f->n_unknown += !t->info;
    }
    qsort(f->types, f->n_types, sizeof *f->types, by_bytes);
    return ERR_OK;
}

static err_code add_tensor(struct model_facts *f, const struct gguf *g, const struct gguf_tensor *t, struct err *e)
{
    uint32_t layer;
    const char *rest, *part;
    if (!split_name(t->name, &layer, &rest) || layer >= f->n_layer) {
        enum gguf_use use = global_use(t->name);
        f->use_bytes[use] += t->n_bytes;
        f->token_use_bytes[use] += use == GGUF_USE_EMBEDDING ? t->n_bytes / t->ne[1] : t->n_bytes; /* one row */
        return ERR_OK;
    }
    struct model_layer_facts *l = &f->layers[layer];
    enum gguf_use use = layer_use(rest);
    if (use == GGUF_USE_ROUTED_EXPERT) {
        TRY(add_routed(f, l, g, t, rest, e));
    } else {
        l->other_bytes += t->n_bytes;
        l->has_dense_ffn |= use == GGUF_USE_DENSE_FFN;
        if (use == GGUF_USE_SHARED_EXPERT && is_weight(t->name) && is_ffn_part(rest, "_shexp", &part))
            l->n_ff_shexp = ffn_width(t, part);
    }
    f->use_bytes[l->is_nextn ? GGUF_USE_NEXTN : use] += t->n_bytes;
    if (is_ffn_part(rest, "_chexps", &part))
        l->adjugate_bytes += t->n_bytes / t->ne[t->n_dims - 1];
    else if (!l->is_nextn && use != GGUF_USE_ROUTED_EXPERT)
        f->token_use_bytes[use] += t->n_bytes;
    return ERR_OK;
}

static void widen(uint32_t *min, uint32_t *max, uint32_t v)
{
    if (v == 0)
        return;
    *min = *min == 0 || v < *min ? v : *min;
    *max = v > *max ? v : *max;
}

/* Decoding a token reads everything but layers for multi-token prediction, with two exceptions: one row of the
 * embedding (a tied one is also read whole, as the output matrix), and n_expert_used routed experts of each layer, each
 * with its adjugate. */
static void sum_layers(struct model_facts *f, const uint32_t *n_expert_used)
{
    for (uint32_t i = 0; i < f->n_layer; i++) {
        struct model_layer_facts *l = &f->layers[i];
        if (l->n_expert)
            l->n_expert_used = n_expert_used[i] < l->n_expert ? n_expert_used[i] : l->n_expert;
        if (l->is_nextn)
            continue;
        widen(&f->n_ff_shexp_min, &f->n_ff_shexp_max, l->n_ff_shexp);
        if (l->n_expert == 0) {
            if (l->has_dense_ffn)
                f->n_layer_dense++;
            else
                f->n_layer_mixing++;
            continue;
        }
        f->n_layer_moe++;
        f->n_expert = l->n_expert > f->n_expert ? l->n_expert : f->n_expert;
        f->n_expert_used = l->n_expert_used > f->n_expert_used ? l->n_expert_used : f->n_expert_used;
        widen(&f->n_ff_exp_min, &f->n_ff_exp_max, l->n_ff_exp);
        if (f->n_layer_moe == 1 || l->expert_bytes < f->expert_bytes_min)
            f->expert_bytes_min = l->expert_bytes;
        if (l->expert_bytes > f->expert_bytes_max)
            f->expert_bytes_max = l->expert_bytes;
        f->token_use_bytes[GGUF_USE_ROUTED_EXPERT] += l->expert_bytes * l->n_expert_used;
        f->token_use_bytes[GGUF_USE_SHARED_EXPERT] += l->adjugate_bytes * l->n_expert_used;
    }
    for (int u = 0; u < GGUF_N_USE; u++)
        f->token_bytes += f->token_use_bytes[u];
}

err_code gguf_facts_compute(struct model_facts *f, const struct gguf *g, struct err *e)
{
    err_code code;
    uint32_t *n_expert_used = mem_calloc(LIMIT_LAYERS, sizeof *n_expert_used);
    *f = (struct model_facts){.architecture.s = "", .name.s = ""};
    if (!n_expert_used)
        return err_nomem(e, LIMIT_LAYERS * sizeof *n_expert_used, "the layers' facts");
    TRY_OUT(read_metadata(f, g, n_expert_used, e));
    TRY_OUT(arch_u32(g, f, "expert_count", &f->n_expert, e));
    f->layers = arena_calloc(&f->arena, f->n_layer, sizeof *f->layers);
    if (!f->layers) {
        code = err_nomem(e, f->n_layer * sizeof *f->layers, "the layers' facts");
        goto out;
    }
    for (uint32_t i = f->n_layer - f->n_layer_nextn; i < f->n_layer; i++)
        f->layers[i].is_nextn = true;
    TRY_OUT(count_types(f, g, e));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++)
        TRY_OUT(add_tensor(f, g, gguf_tensor_at(g, i), e));
    const struct gguf_tensor *embedding = gguf_tensor_find(g, "token_embd.weight");
    if (embedding && f->n_vocab == 0)
        f->n_vocab = (uint32_t)embedding->ne[1];
    f->is_tied = embedding && !gguf_tensor_find(g, "output.weight");
    if (f->is_tied)
        f->token_use_bytes[GGUF_USE_OUTPUT] += embedding->n_bytes;
    TRY_OUT(add_ngrams(f, g, e));
    sum_layers(f, n_expert_used);
    f->resident_bytes =
        f->n_bytes - f->use_bytes[GGUF_USE_ROUTED_EXPERT] - f->use_bytes[GGUF_USE_NEXTN] - f->ngram_bytes;
out:
    mem_free(n_expert_used);
    if (code != ERR_OK)
        gguf_facts_close(f);
    return code;
}

void gguf_facts_close(struct model_facts *f)
{
    arena_close(&f->arena);
    *f = (struct model_facts){.architecture.s = "", .name.s = ""};
}
