/* What models mean that leave a key out: for each key with a default, copies of golden models with the default written
 * out and without the key give the same logits to the bit, and one with another value does not. llama.cpp has the same
 * defaults, as far as it lets the key be absent. */
#include "../unit/model_edit.h"

#include <math.h>

#include "../unit/temp_folder.h"
#include "moebius/moebius.h"

enum value_kind {
    NUMBER,
    FLOAT,
    FLAG,
    TEXT,
    KEY,           /* what another key says */
    HEAD_LENGTH,   /* embedding_length / attention.head_count */
    SCORE_SCALE,   /* 1 / sqrt(attention.key_length) */
    PERIOD,        /* an array: 0 in every so many-th layer, 1 in the others */
    N_TENSOR_ROWS, /* the row length of a layer's tensor */
};

struct value {
    enum value_kind kind;
    double number;
    const char *text;
};

#define IS_NUMBER(n)                                                                                                   \
    {                                                                                                                  \
        NUMBER, n, NULL                                                                                                \
    }
#define IS_FLOAT(x)                                                                                                    \
    {                                                                                                                  \
        FLOAT, x, NULL                                                                                                 \
    }
#define IS_FLAG(b)                                                                                                     \
    {                                                                                                                  \
        FLAG, b, NULL                                                                                                  \
    }
#define IS_TEXT(s)                                                                                                     \
    {                                                                                                                  \
        TEXT, 0, s                                                                                                     \
    }
#define IS_KEY(s)                                                                                                      \
    {                                                                                                                  \
        KEY, 0, s                                                                                                      \
    }
#define IS_KIND(kind)                                                                                                  \
    {                                                                                                                  \
        kind, 0, NULL                                                                                                  \
    }
#define IS_PERIOD(n)                                                                                                   \
    {                                                                                                                  \
        PERIOD, n, NULL                                                                                                \
    }

/* One default: the families that have it (NULL: all), and a value that it must differ from. */
struct row {
    const char *archs, *key;
    struct value absent, other;
    const char *with_key; /* set beforehand: without it the key counts for nothing; NULL: none */
    struct value with;
};

#define SOFTMAX                                                                                                        \
    "llama deepseek deepseek2 mistral4 bailingmoe ernie4_5-moe gemma4 granitehybrid granitemoe hunyuan-moe jamba "     \
    "minimax-01 "                                                                                                      \
    "arctic grovemoe olmoe "                                                                                           \
    "qwen2moe "                                                                                                        \
    "qwen3moe qwen3next qwen35moe mellum maple granite_swa phimoe grok dbrx"
#define SIGMOID                                                                                                        \
    "afmoe bailingmoe2 bailingmoe3 deepseek32 dots1 dots3note exaone-moe glm-dsa glm4moe glm5next hy_v3 hy_v4 "        \
    "kimi-k3 kimi-linear laguna "                                                                                      \
    "lfm2moe "                                                                                                         \
    "llama4 mimo2 "                                                                                                    \
    "minimax-m2 minimax-m3 "                                                                                           \
    "nemotron_h_moe step35 smallthinker cohere2moe"
#define NORMED                                                                                                         \
    "llama ernie4_5-moe gemma4 granitehybrid granitemoe hunyuan-moe kimi-linear lfm2moe mellum mimo2 minimax-m2 "      \
    "minimax-01 "                                                                                                      \
    "arctic grovemoe qwen3moe "                                                                                        \
    "qwen3next "                                                                                                       \
    "qwen35moe qwen4exp maple granite_swa phimoe smallthinker grok dbrx"
#define NOT_NORMED                                                                                                     \
    "afmoe bailingmoe bailingmoe2 deepseek deepseek2 mistral4 deepseek32 dots1 dots3note exaone-moe glm-dsa glm4moe "  \
    "hy_v3 "                                                                                                           \
    "bailingmoe3 glm5next hy_v4 jamba kimi-k3 laguna olmoe qwen2moe "                                                  \
    "nemotron_h_moe step35 deepseek4 cohere2moe minimax-m3"

static const struct row rows[] = {
    {NULL, "rope.freq_base", IS_FLOAT(10000), IS_FLOAT(700)},
    {NULL, "rope.scaling.type", IS_TEXT("linear"), IS_TEXT("none"), "rope.scaling.factor", IS_FLOAT(3)},
    {NULL, "rope.scaling.factor", IS_FLOAT(1), IS_FLOAT(3)},
    {NULL, "attention.head_count_kv", IS_KEY("attention.head_count"), IS_NUMBER(1)},
    {NULL, "attention.key_length", IS_KIND(HEAD_LENGTH), IS_NUMBER(6)},
    {NULL, "attention.value_length", IS_KIND(HEAD_LENGTH), IS_NUMBER(6)},
    {NULL, "rope.dimension_count", IS_KEY("attention.key_length"), IS_NUMBER(2)},
    {NULL, "expert_feed_forward_length", {N_TENSOR_ROWS, 0, "ffn_down_exps.weight"}, IS_NUMBER(4)},
    {"grovemoe", "expert_chunk_feed_forward_length", {N_TENSOR_ROWS, 0, "ffn_down_chexps.weight"}, IS_NUMBER(4)},
    {NULL, "expert_weights_scale", IS_FLOAT(1), IS_FLOAT(0.5)},
    {NULL, "expert_group_count", IS_NUMBER(1), IS_NUMBER(2), "expert_group_used_count", IS_NUMBER(1)},
    {NULL, "nextn_predict_layers", IS_NUMBER(0), IS_NUMBER(2)},
    {NULL, "rope.scaling.original_context_length", IS_KEY("context_length"), IS_NUMBER(20), "rope.scaling.type",
     IS_TEXT("yarn")},
    {NULL, "rope.scaling.yarn_beta_fast", IS_FLOAT(32), IS_FLOAT(3), "rope.scaling.type", IS_TEXT("yarn")},
    {NULL, "rope.scaling.yarn_beta_slow", IS_FLOAT(1), IS_FLOAT(0.01), "rope.scaling.type", IS_TEXT("yarn")},
    {NULL, "rope.scaling.attn_factor", IS_FLOAT(1), IS_FLOAT(1.5), "rope.scaling.type", IS_TEXT("yarn")},
    {NULL, "rope.scaling.yarn_log_multiplier", IS_FLOAT(0), IS_FLOAT(0.3), "rope.scaling.type", IS_TEXT("yarn")},
    {SOFTMAX, "expert_gating_func", IS_NUMBER(1), IS_NUMBER(2)},
    {SIGMOID, "expert_gating_func", IS_NUMBER(2), IS_NUMBER(1)},
    {"gpt-oss", "expert_gating_func", IS_NUMBER(3), IS_NUMBER(2)},
    {NORMED, "expert_weights_norm", IS_FLAG(true), IS_FLAG(false)},
    {NOT_NORMED, "expert_weights_norm", IS_FLAG(false), IS_FLAG(true)},
    {"gpt-oss", "attention.sliding_window_pattern", IS_NUMBER(2), IS_NUMBER(3)},
    {"gpt-oss", "attention.sliding_window_pattern", IS_PERIOD(2), IS_PERIOD(3)},
    {"afmoe exaone-moe laguna smallthinker cohere2moe", "attention.sliding_window_pattern", IS_NUMBER(4), IS_NUMBER(2)},
    {"afmoe exaone-moe", "attention.sliding_window_pattern", IS_PERIOD(4), IS_PERIOD(2)},
    {"llama4", "attention.sliding_window_pattern", IS_PERIOD(4), IS_PERIOD(2)},
    {"llama4", "attention.sliding_window", IS_NUMBER(8192), IS_NUMBER(8)},
    {"gpt-oss afmoe exaone-moe laguna smallthinker cohere2moe", "rope.freq_base_swa", IS_KEY("rope.freq_base"),
     IS_FLOAT(700)},
    {"gpt-oss afmoe exaone-moe step35", "rope.dimension_count_swa", IS_KEY("rope.dimension_count"), IS_NUMBER(4)},
    {"gemma4", "rope.dimension_count_swa", IS_KEY("attention.key_length_swa"), IS_NUMBER(4)},
    {"gemma4", "attention.shared_kv_layers", IS_NUMBER(0), IS_NUMBER(3)},
    {"gemma4", "embedding_length_per_layer_input", IS_NUMBER(0), IS_NUMBER(16)},
    {"gemma4 mimo2 step35", "rope.freq_base_swa", IS_FLOAT(10000), IS_FLOAT(700)},
    {"gemma4", "final_logit_softcapping", IS_FLOAT(30), IS_FLOAT(2)},
    {"gemma4", "attention.key_length_swa", IS_KEY("attention.key_length"), IS_NUMBER(8)},
    {"granite granitehybrid granitemoe", "embedding_scale", IS_FLOAT(1), IS_FLOAT(3)},
    {"granite granitehybrid granitemoe", "residual_scale", IS_FLOAT(1), IS_FLOAT(3)},
    {"granite granitehybrid granitemoe", "logit_scale", IS_FLOAT(1), IS_FLOAT(3)},
    {"granite granitehybrid granitemoe", "attention.scale", IS_KIND(SCORE_SCALE), IS_FLOAT(3)},
    {"nemotron_h nemotron_h_moe", "attention.scale", IS_KIND(SCORE_SCALE), IS_FLOAT(3)},
    {"granite granitehybrid", "rope.scaling.finetuned", IS_FLAG(true), IS_FLAG(false)},
    {"grok", "attention.output_scale", IS_FLOAT(0.08838834764831845), IS_FLOAT(1)},
    {"grok", "attn_logit_softcapping", IS_FLOAT(30), IS_FLOAT(0.5)},
    {"grok", "embedding_scale", IS_FLOAT(78.38367176906169), IS_FLOAT(3)},
    {"grok", "logit_scale", IS_FLOAT(0.5773502691896257), IS_FLOAT(3)},
    {"grok", "final_logit_softcapping", IS_FLOAT(0), IS_FLOAT(3)},
    {"cohere2moe", "leading_dense_block_count", IS_NUMBER(0), IS_NUMBER(1)},
    {"mimo2", "attention.value_scale", IS_FLOAT(1), IS_FLOAT(3)},
    {"step35", "swiglu_clamp_exp", IS_FLOAT(0), IS_FLOAT(0.3)},
    {"step35", "swiglu_clamp_shexp", IS_FLOAT(0), IS_FLOAT(0.3)},
    {"mistral3", "attention.temperature_scale", IS_FLOAT(0), IS_FLOAT(3)},
    {"deepseek2 mistral4", "attention.temperature_scale", IS_FLOAT(0), IS_FLOAT(3), "attention.temperature_length",
     IS_NUMBER(8)},
    {"qwen3next qwen35moe qwen35", "full_attention_interval", IS_NUMBER(4), IS_NUMBER(3)},
    {"qwen3next qwen35moe qwen35", "attention.recurrent_layers", IS_PERIOD(4), IS_PERIOD(3)},
};

enum { N_ROW = sizeof rows / sizeof *rows, N_ID = 30, ENOUGH = 3, KEY_BYTES = 128 };

static void full_key(struct model_edit *m, const char *suffix, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s.%s", model_edit_find(m, "general.architecture")->str.s, suffix);
}

static const struct gguf_value *find(struct model_edit *m, const char *suffix)
{
    char key[KEY_BYTES];
    full_key(m, suffix, key);
    return model_edit_find(m, key);
}

static uint32_t number_of(struct model_edit *m, const char *suffix)
{
    const struct gguf_value *v = find(m, suffix);
    return v && v->type == GGUF_U32 ? (uint32_t)v->u : 0;
}

static const struct model_edit_tensor *find_ending(const struct model_edit *m, const char *end)
{
    for (size_t i = 0; i < m->n_tensor; i++) {
        size_t n = strlen(m->tensors[i].name), n_end = strlen(end);
        if (n > n_end && !strcmp(m->tensors[i].name + n - n_end, end))
            return &m->tensors[i];
    }
    return NULL;
}

static void set_period(struct model_edit *m, const char *key, uint32_t period)
{
    uint32_t all[64], n = number_of(m, "block_count");
    assert_in_range(n, 1, 64);
    for (uint32_t i = 0; i < n; i++)
        all[i] = (i + 1) % period != 0;
    model_edit_set_array(m, key, all, n);
}

/* False when the model lacks what the value is computed from. */
static bool set(struct model_edit *m, const char *suffix, const struct value *v)
{
    char key[KEY_BYTES];
    full_key(m, suffix, key);
    uint32_t n_head = number_of(m, "attention.head_count"), dim = number_of(m, "attention.key_length");
    const struct gguf_value *same = v->kind == KEY ? find(m, v->text) : NULL;
    const struct model_edit_tensor *t = v->kind == N_TENSOR_ROWS ? find_ending(m, v->text) : NULL;
    switch (v->kind) {
    case NUMBER: model_edit_set_u32(m, key, (uint32_t)v->number); return true;
    case FLOAT: model_edit_set_f32(m, key, v->number); return true;
    case FLAG: model_edit_set(m, key, (struct gguf_value){.type = GGUF_BOOL, .u = v->number != 0}); return true;
    case TEXT:
        model_edit_set(m, key, (struct gguf_value){.type = GGUF_STRING, .str = {v->text, strlen(v->text)}});
        return true;
    case KEY:
        if (same)
            model_edit_set(m, key, *same);
        return same != NULL;
    case HEAD_LENGTH:
        if (n_head)
            model_edit_set_u32(m, key, number_of(m, "embedding_length") / n_head);
        return n_head > 0;
    case SCORE_SCALE: model_edit_set_f32(m, key, dim ? 1 / sqrtf((float)dim) : 0); return dim > 0;
    case PERIOD: set_period(m, key, (uint32_t)v->number); return true;
    case N_TENSOR_ROWS:
        if (t)
            model_edit_set_u32(m, key, (uint32_t)t->ne[0]);
        return t != NULL;
    }
    return false;
}

/* The last token's logits, to be freed; NULL: the model is refused. */
static float *run(const struct model_edit *m, const char *name, size_t *n)
{
    struct err e;
    size_t n_bytes;
    moebius_engine *engine = NULL;
    moebius_session *session = NULL;
    const moebius_engine_options options = {.n_threads = 1};
    const moebius_session_options session_options = {.n_ctx = 64, .kv = MOEBIUS_KV_F32};
    int32_t ids[N_ID];
    float *logits = NULL;
    for (int i = 0; i < N_ID; i++)
        ids[i] = 3 + i * 7 % 90;
    struct temp_path p = temp_path(&folder, name);
    void *bytes = model_edit_bytes(m, &n_bytes, &e);
    assert_non_null(bytes);
    write_file(p.s, bytes, n_bytes);
    mem_free(bytes);
    if (moebius_engine_open(&engine, p.s, &options, NULL) == MOEBIUS_OK) {
        assert_int_equal(moebius_session_open(&session, engine, &session_options, NULL), MOEBIUS_OK);
        assert_int_equal(moebius_session_eval(session, ids, N_ID, NULL), MOEBIUS_OK);
        *n = (size_t)moebius_n_vocab(engine) * sizeof *logits;
        logits = malloc(*n);
        memcpy(logits, moebius_session_logits(session), *n);
    }
    moebius_session_close(&session);
    moebius_engine_close(&engine);
    return logits;
}

static bool applies(const struct row *r, struct model_edit *m)
{
    const char *arch = model_edit_find(m, "general.architecture")->str.s, *at = r->archs;
    size_t n = strlen(arch);
    while (at && (at = strstr(at, arch)) && ((at > r->archs && at[-1] != ' ') || (at[n] && at[n] != ' ')))
        at += n;
    return !r->archs || at;
}

/* Whether the key counts in this model, and what it is without it is the default. */
static bool check_row(const struct row *r, const char *path)
{
    size_t n[3];
    float *logits[3];
    char key[KEY_BYTES];
    struct model_edit m;
    model_edit_open(&m, path);
    bool ok = applies(r, &m) && (!r->with_key || set(&m, r->with_key, &r->with)) && set(&m, r->key, &r->absent);
    if (ok) {
        logits[0] = run(&m, "written.gguf", &n[0]);
        full_key(&m, r->key, key);
        model_edit_drop(&m, key);
        logits[1] = run(&m, "absent.gguf", &n[1]);
        set(&m, r->key, &r->other);
        logits[2] = logits[0] ? run(&m, "other.gguf", &n[2]) : NULL;
        if (!logits[0] != !logits[1] || (logits[0] && memcmp(logits[0], logits[1], n[0]) != 0))
            fail_msg("%s: without %s it is not what it is with the default", path, key);
        ok = logits[0] && (!logits[2] || memcmp(logits[0], logits[2], n[0]) != 0);
        for (int i = 0; i < 3; i++)
            free(logits[i]);
    }
    model_edit_close(&m);
    return ok;
}

static int is_model(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && !strcmp(d->d_name + n - 5, ".gguf") && strncmp(d->d_name, "q_", 2) != 0;
}

/* A default that all families share is tried on a few models that it matters to, one of a family on all of them. */
static void absent_keys_mean_their_defaults(void **state)
{
    struct dirent **files;
    int n = scandir(GOLDEN, &files, is_model, alphasort);
    assert_true(n > 0);
    for (size_t i = 0; i < N_ROW; i++) {
        int n_tried = 0;
        for (int j = 0; j < n && (rows[i].archs || n_tried < ENOUGH); j++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", GOLDEN, files[j]->d_name);
            n_tried += check_row(&rows[i], path);
        }
        if (!n_tried)
            fail_msg("no golden model shows the default of %s", rows[i].key);
    }
    for (int j = 0; j < n; j++)
        free(files[j]);
    free(files);
}

/* The model under another name of its architecture, which is also that of its keys. */
static void rename_architecture(struct model_edit *m, const char *from, const char *to)
{
    size_t n = strlen(from);
    model_edit_set(m, "general.architecture", (struct gguf_value){.type = GGUF_STRING, .str = {to, strlen(to)}});
    for (size_t i = 0; i < m->n_key; i++) {
        char key[KEY_BYTES];
        struct gguf_string *k = &m->keys[i].key;
        if (strncmp(k->s, from, n) != 0 || k->s[n] != '.')
            continue;
        k->n = (size_t)snprintf(key, sizeof key, "%s%s", to, k->s + n);
        k->s = arena_strndup(&m->arena, key, k->n);
    }
}

static void other_names_of_an_architecture_mean_the_same(void **state)
{
    static const char *const names[] = {"gpt-oss", "gpt_oss", "openai-moe"};
    float *logits[3];
    size_t n[3];
    for (int i = 0; i < 3; i++) {
        struct model_edit m;
        model_edit_open(&m, GOLDEN "/gpt_oss.gguf");
        rename_architecture(&m, "gpt-oss", names[i]);
        logits[i] = run(&m, "renamed.gguf", &n[i]);
        assert_non_null(logits[i]);
        assert_int_equal(n[i], n[0]);
        assert_memory_equal(logits[i], logits[0], n[0]);
        model_edit_close(&m);
    }
    for (int i = 0; i < 3; i++)
        free(logits[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(absent_keys_mean_their_defaults),
                                       cmocka_unit_test(other_names_of_an_architecture_mean_the_same)};
    return cmocka_run_group_tests_name("defaults", tests, folder_setup, folder_teardown);
}
