#include "jobs/quantize_mix.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "gguf/gguf_facts.h"

enum where {
    WHERE_ALL,
    WHERE_SOME,  /* the first and the last eighth of the layers, and every third between */
    WHERE_FIRST, /* the first eighth */
};

struct preset {
    const char *name;
    uint32_t file_type;
    enum quant_type gate_up_exps, down_exps, base, down, attn_v, attn_output, embedding, output;
    enum where where;
};

static const struct preset presets[] = {
#define PRESET(name, file_type, gate_up_exps, down_exps, base, down, v, o, embedding, output, where)                   \
    {#name,     file_type, QUANT_##gate_up_exps, QUANT_##down_exps, QUANT_##base, QUANT_##down,                        \
     QUANT_##v, QUANT_##o, QUANT_##embedding,    QUANT_##output,    WHERE_##where},
#include "jobs/quantize_presets.def"
#undef PRESET
};

static const char preset_names[] = "one of the mixes"
#define PRESET(name, ...) " " #name
#include "jobs/quantize_presets.def"
#undef PRESET
    ;

static const char type_names[] = "one of the weight types"
#define QUANT(name, ...) " " #name
#include "quant/quant_types.def"
#undef QUANT
    ;

enum { N_PRESET = (int)(sizeof presets / sizeof *presets), FILE_TYPE_GUESSED = 1024 };

struct rule {
    const char *text; /* borrowed */
    pcre2_code *pattern;
    const struct quant_info *type;
    bool is_met; /* by a tensor's name */
};

struct mix {
    struct preset preset;
    uint32_t n_layer;
    struct rule *rules;
    int n_rule;
    pcre2_match_data *match;
};

static err_code choose_preset(struct mix *m, const char *type, bool pure, struct err *e)
{
    for (int i = 0; !pure && i < N_PRESET; i++)
        if (!strcasecmp(presets[i].name, type)) {
            m->preset = presets[i];
            return ERR_OK;
        }
    const struct quant_info *q = quant_find(type);
    if (!q)
        return err_set(e, ERR_USAGE, "--type %s: expected %s%s%s", type, pure ? "" : preset_names, pure ? "" : "; or ",
                       type_names);
    m->preset = (struct preset){type,    FILE_TYPE_GUESSED, q->type, q->type, q->type,  q->type,
                                q->type, q->type,           q->type, q->type, WHERE_ALL};
    return ERR_OK;
}

static err_code add_rule(struct mix *m, const char *text, struct err *e)
{
    const char *equals = strrchr(text, '=');
    struct rule *r = &m->rules[m->n_rule];
    r->text = text;
    int error;
    size_t at;
    if (!equals || equals == text)
        return err_set(e, ERR_USAGE, "--rule %s: expected REGEX=TYPE", text);
    r->type = quant_find(equals + 1);
    if (!r->type)
        return err_set(e, ERR_USAGE, "--rule %s: type %s: expected %s", text, equals + 1, type_names);
    r->pattern = pcre2_compile((PCRE2_SPTR)text, (size_t)(equals - text), 0, &error, &at, NULL);
    if (!r->pattern) {
        PCRE2_UCHAR why[128] = {0};
        pcre2_get_error_message(error, why, sizeof why);
        return err_set(e, ERR_USAGE, "--rule %s: at character %zu: %s", text, at + 1, (const char *)why);
    }
    m->n_rule++;
    return ERR_OK;
}

err_code mix_create(struct mix **out, const char *type, bool pure, const char *const *rules, int n_rule,
                    uint32_t n_layer, struct err *e)
{
    struct mix *m = mem_calloc(1, sizeof *m);
    *out = m;
    if (!m)
        return err_nomem(e, sizeof *m, "a mix");
    m->n_layer = n_layer;
    m->rules = mem_calloc((size_t)n_rule + 1, sizeof *m->rules);
    m->match = pcre2_match_data_create(1, NULL);
    if (!m->rules || !m->match)
        return err_nomem(e, ((size_t)n_rule + 1) * sizeof *m->rules, "rules");
    TRY(choose_preset(m, type, pure, e));
    for (int i = 0; i < n_rule; i++)
        TRY(add_rule(m, rules[i], e));
    return ERR_OK;
}

void mix_close(struct mix **m)
{
    if (!*m)
        return;
    for (int i = 0; i < (*m)->n_rule; i++)
        pcre2_code_free((*m)->rules[i].pattern);
    pcre2_match_data_free((*m)->match);
    mem_free((*m)->rules);
    mem_free(*m);
    *m = NULL;
}

uint32_t mix_file_type(const struct mix *m)
{
    return m->preset.file_type;
}

static bool in_where(const struct mix *m, uint32_t layer)
{
    uint32_t n = m->n_layer, eighth = n / 8;
    switch (m->preset.where) {
    case WHERE_FIRST: return layer < (eighth ? eighth : 1);
    case WHERE_SOME: return layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2;
    default: return true;
    }
}

/* Whether a tensor is a large matrix that products read. */
static bool is_matrix(const struct gguf_tensor *t, enum gguf_use use)
{
    size_t n = strlen(t->name);
    bool weight = n > 7 && !strcmp(t->name + n - 7, ".weight");
    return weight && t->n_dims > 1 && use != GGUF_USE_ROUTER && use != GGUF_USE_OTHER && !strstr(t->name, "norm") &&
           !strstr(t->name, "conv1d") && !strstr(t->name, "gate_inp") && !strstr(t->name, "_ape.") &&
           !strstr(t->name, "position_embd");
}

static enum quant_type preset_type(const struct mix *m, const struct gguf_tensor *t, enum gguf_use use, int layer)
{
    const struct preset *p = &m->preset;
    bool more = layer >= 0 && in_where(m, (uint32_t)layer), is_down = strstr(t->name, "ffn_down") != NULL;
    switch (use) {
    case GGUF_USE_EMBEDDING: return p->embedding;
    case GGUF_USE_OUTPUT: return p->output;
    case GGUF_USE_ROUTED_EXPERT: return is_down && more ? p->down_exps : p->gate_up_exps;
    default: break;
    }
    if (is_down)
        return more ? p->down : p->base;
    if (strstr(t->name, "attn_v.") || strstr(t->name, "attn_qkv."))
        return more ? p->attn_v : p->base;
    return strstr(t->name, "attn_output.") ? p->attn_output : p->base;
}

/* A type of about as many bits whose blocks divide a row of n; F16 when none does. */
static enum quant_type dividing_type(const struct quant_info *q, uint64_t n)
{
    int bits8 = 64 * q->block_bytes / q->block_len; /* eighths of bits a weight */
    if (n % (uint64_t)q->block_len == 0)
        return q->type;
    if (n % 32 != 0)
        return QUANT_F16;
    return bits8 <= 8 * 4.5 ? QUANT_IQ4_NL : bits8 <= 8 * 5.5 ? QUANT_Q5_1 : QUANT_Q8_0;
}

const struct quant_info *mix_choose(struct mix *m, const struct gguf_tensor *t, const struct quant_info **fallback)
{
    int layer;
    enum gguf_use use = gguf_tensor_use(t, &layer);
    *fallback = NULL;
    const struct quant_info *want = NULL;
    for (int i = 0; i < m->n_rule; i++)
        if (pcre2_match(m->rules[i].pattern, (PCRE2_SPTR)t->name, strlen(t->name), 0, 0, m->match, NULL) >= 0) {
            m->rules[i].is_met = true;
            want = want ? want : m->rules[i].type;
        }
    if (!want && !is_matrix(t, use))
        return t->info;
    if (!want)
        want = quant_info(preset_type(m, t, use, layer));
    const struct quant_info *q = quant_info(dividing_type(want, t->ne[0]));
    if (q != want)
        *fallback = want;
    return q;
}

err_code mix_check_rules(const struct mix *m, struct err *e)
{
    for (int i = 0; i < m->n_rule; i++)
        if (!m->rules[i].is_met)
            return err_set(e, ERR_USAGE, "--rule %s: the expression is found in no tensor's name", m->rules[i].text);
    return ERR_OK;
}
