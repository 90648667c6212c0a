/* What the loader refuses of a model's metadata: golden models with something changed, on the null device. */
#include "model_edit.h"

#include <math.h>

static struct model_edit golden(const char *name)
{
    char path[1024];
    struct model_edit m;
    snprintf(path, sizeof path, "%s/%s.gguf", GOLDEN, name);
    model_edit_open(&m, path);
    return m;
}

/* The model is refused with a sentence that names the file and holds a and b. Closes it. */
static void refused(struct model_edit *m, const char *a, const char *b)
{
    struct err e = {0};
    assert_int_not_equal(model_edit_load(m, &e), ERR_OK);
    if (!strstr(e.text, "edited.gguf") || !strstr(e.text, a) || !strstr(e.text, b))
        fail_msg("\"%s\" should name the file, %s and %s", e.text, a, b);
    model_edit_close(m);
}

static void accepted(struct model_edit *m)
{
    struct err e = {0};
    if (model_edit_load(m, &e) != ERR_OK)
        fail_msg("%s", e.text);
    model_edit_close(m);
}

static void unchanged_copies_are_accepted(void **state)
{
    static const char *const names[] = {"llama_moe", "gemma4_shared", "qwen35moe", "deepseek2", "exaone_moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_edit m = golden(names[i]);
        accepted(&m);
    }
}

/* Every float of the metadata, and a model that has it or whose family reads it. */
static void floats_out_of_range_are_refused(void **state)
{
    static const struct {
        const char *model, *key;
        bool zero_is_none;
    } floats[] = {
        {"llama_moe", "llama.attention.layer_norm_rms_epsilon", false},
        {"llama_moe", "llama.rope.freq_base", false},
        {"llama_moe", "llama.rope.scaling.factor", true},
        {"llama_moe", "llama.expert_weights_scale", true},
        {"gpt_oss", "gpt-oss.rope.scaling.factor", true},
        {"gpt_oss", "gpt-oss.rope.scaling.attn_factor", false},
        {"gpt_oss", "gpt-oss.rope.scaling.yarn_beta_fast", false},
        {"gpt_oss", "gpt-oss.rope.scaling.yarn_beta_slow", false},
        {"gpt_oss", "gpt-oss.rope.freq_base_swa", false},
        {"deepseek2", "deepseek2.rope.scaling.yarn_log_multiplier", true},
        {"mistral3", "mistral3.rope.scaling.yarn_log_multiplier", true},
        {"mistral3", "mistral3.attention.temperature_scale", true},
        {"mistral4", "mistral4.attention.temperature_scale", true},
        {"granitemoe", "granitemoe.embedding_scale", true},
        {"granitemoe", "granitemoe.residual_scale", true},
        {"granitemoe", "granitemoe.logit_scale", true},
        {"granitemoe", "granitemoe.attention.scale", true},
        {"gemma4", "gemma4.final_logit_softcapping", true},
        {"gemma4", "gemma4.rope.freq_base_swa", false},
        {"mimo2", "mimo2.attention.value_scale", true},
        {"mimo2", "mimo2.rope.freq_base_swa", false},
        {"cohere2moe", "cohere2moe.logit_scale", true},
        {"cohere2moe", "cohere2moe.attention.layer_norm_epsilon", false},
        {"dbrx", "dbrx.attention.layer_norm_epsilon", false},
        {"dbrx", "dbrx.attention.clamp_kqv", true},
        {"grok", "grok.attention.output_scale", false},
        {"grok", "grok.attn_logit_softcapping", true},
        {"grok", "grok.final_logit_softcapping", true},
        {"grok", "grok.embedding_scale", false},
        {"grok", "grok.logit_scale", false},
        {"grok", "grok.rope.scaling.yarn_ext_factor", false},
        {"phimoe", "phimoe.rope.scaling.attn_factor", false},
        {"step35", "step35.swiglu_clamp_exp", true},
        {"step35", "step35.swiglu_clamp_shexp", true},
        {"hy_v4", "hy_v4.hyper_connection.magnitude", false},
        {"kimi_k3", "kimi-k3.activation.situ_beta", false},
        {"kimi_k3", "kimi-k3.activation.situ_linear_beta", true},
    };
    static const double wrong[] = {NAN, INFINITY, -INFINITY, -1, 1e-40, 3e38, 0};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++) {
            struct model_edit m = golden(floats[i].model);
            model_edit_set_f32(&m, floats[i].key, wrong[j]);
            if (wrong[j] == 0 && floats[i].zero_is_none)
                accepted(&m);
            else
                refused(&m, floats[i].key, "expected");
        }
}

static void counts_whose_products_overflow_are_refused(void **state)
{
    struct model_edit m = golden("llama"); /* the heads' rows wrap around to a few */
    model_edit_set_u32(&m, "llama.attention.head_count", 1431811270);
    model_edit_set_u32(&m, "llama.attention.head_count_kv", 1431811270);
    model_edit_set_u32(&m, "llama.attention.key_length", 4294943964u);
    refused(&m, "llama.attention.head_count", "1431811270");
    const uint32_t heads[] = {4, 4, 4, UINT32_MAX};
    m = golden("llama");
    model_edit_set_array(&m, "llama.attention.head_count", heads, 4);
    refused(&m, "llama.attention.head_count", "4294967295");
    m = golden("qwen35moe");
    model_edit_set_u32(&m, "qwen35moe.ssm.state_size", UINT32_MAX);
    refused(&m, "qwen35moe.ssm.state_size", "4294967295");
}

/* A number in a model's metadata that is refused with a sentence that holds `why`. */
struct wrong_number {
    const char *model, *key;
    uint32_t value;
    const char *why;
};

static void refuse_numbers(const struct wrong_number *wrong, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct model_edit m = golden(wrong[i].model);
        model_edit_set_u32(&m, wrong[i].key, wrong[i].value);
        refused(&m, "expected", wrong[i].why);
    }
}

static void temperatures_without_a_length_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {{"mistral4", "mistral4.attention.temperature_length", 0, "at least 1"}};
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
}

static void impossible_indexes_of_positions_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"deepseek32", "deepseek32.attention.indexer.top_k", 0, "at least 1"},
        {"deepseek32", "deepseek32.attention.indexer.key_length", 2, "the 4 that are rotated"},
        {"glm_dsa", "glm-dsa.attention.indexer.head_count", 0, "at least 1"},
        {"glm_dsa", "glm-dsa.attention.indexer.head_count", 13, "indexer.attn_q_b.weight"},
        {"glm5next", "glm5next.attention.indexer.kpool", 0, "top_k is 12, kpool 0"},
        {"glm5next", "glm5next.attention.indexer.kpool", 1, "which is 2 to 64"},
        {"glm5next", "glm5next.attention.indexer.kpool", 65, "which is 2 to 64"},
        {"glm5next", "glm5next.attention.indexer.kpool", 5, "a multiple of kpool"},
        {"glm5next", "glm5next.attention.indexer.kpool", 6, "indexer_compressor_ape.weight"},
        {"glm5next", "glm5next.rope.dimension_count", 3, "an even number rotated"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
    static const uint32_t nobody_chose[] = {0, 1, 1, 1};
    struct model_edit m = golden("glm_dsa");
    model_edit_set_array(&m, "glm-dsa.attention.indexer.types", nobody_chose, 4);
    refused(&m, "layer 0", "glm-dsa.attention.indexer.types");
    static const char *const pooling[] = {"blk.4.indexer_compressor_gate.weight", "blk.1.indexer_compressor_ape.weight",
                                          "blk.1.indexer.k_norm.bias"};
    for (size_t i = 0; i < sizeof pooling / sizeof *pooling; i++) {
        m = golden("glm5next");
        model_edit_drop_tensor(&m, pooling[i]);
        refused(&m, pooling[i], "is missing");
    }
    m = golden("glm5next");
    model_edit_set(&m, "glm5next.attention.indexer.kpool_select_tail", (struct gguf_value){GGUF_BOOL, .u = 0});
    refused(&m, "kpool_select_tail", "takes true");
}

/* The same model as another converter writes it. */
static void an_index_of_runs_has_two_sets_of_names(void **state)
{
    static const char *const names[][2] = {
        {"blk.1.indexer_compressor_gate.weight", "blk.1.indexer.kpool_gate.weight"},
        {"blk.4.indexer_compressor_gate.weight", "blk.4.indexer.kpool_gate.weight"},
        {"blk.1.indexer_compressor_ape.weight", "blk.1.indexer.kpool_ape.weight"},
        {"blk.4.indexer_compressor_ape.weight", "blk.4.indexer.kpool_ape.weight"},
    };
    static const char was[] = "glm5next.", is[] = "glm5-next";
    struct model_edit m = golden("glm5next");
    model_edit_set(&m, "general.architecture", (struct gguf_value){GGUF_STRING, .str = {is, strlen(is)}});
    for (size_t i = 0; i < m.n_key; i++) {
        char key[128];
        if (strncmp(m.keys[i].key.s, was, strlen(was)) != 0)
            continue;
        snprintf(key, sizeof key, "%s.%s", is, m.keys[i].key.s + strlen(was));
        m.keys[i].key.s = arena_strndup(&m.arena, key, strlen(key));
        m.keys[i].key.n = strlen(key);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        model_edit_tensor(&m, names[i][0])->name = names[i][1];
    accepted(&m);
}

static void impossible_indexes_of_blocks_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"minimax_m3", "minimax-m3.attention.indexer.block_size", 0, "block_size is 0: expected a multiple of 64"},
        {"minimax_m3", "minimax-m3.attention.indexer.block_size", 96, "block_size is 96: expected a multiple of 64"},
        {"minimax_m3", "minimax-m3.attention.indexer.local_blocks", 0, "local_blocks is 0: expected 1"},
        {"minimax_m3", "minimax-m3.attention.indexer.local_blocks", 3, "to the 2 of"},
        {"minimax_m3", "minimax-m3.attention.indexer.top_k", 0, "to the 0 of"},
        {"minimax_m3", "minimax-m3.attention.indexer.head_count", 1, "one for each of 2 KV heads"},
        {"minimax_m3", "minimax-m3.attention.indexer.key_length", 6, "the 8 that are rotated"},
        {"minimax_m3", "minimax-m3.attention.indexer.key_length", 40, "indexer.q_proj.weight"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
}

static void impossible_compressed_caches_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"deepseek4", "deepseek4.attention.sliding_window", 0, "a window of 0"},
        {"deepseek4", "deepseek4.attention.output_group_count", 3, "as many heads in each group"},
        {"deepseek4", "deepseek4.attention.key_length", 6, "an even number rotated"},
        {"deepseek4", "deepseek4.attention.indexer.top_k", 0, "at least 1"},
        {"deepseek4", "deepseek4.attention.indexer.head_count", 5, "indexer.attn_q_b.weight"},
        {"deepseek4", "deepseek4.hyper_connection.count", 5, "2 to 4"},
        {"deepseek4", "deepseek4.hyper_connection.count", 3, "hc_attn_fn.weight"},
        {"deepseek4", "deepseek4.hyper_connection.sinkhorn_iterations", 0, "1 to 256"},
        {"deepseek4", "deepseek4.hyper_connection.sinkhorn_iterations", 257, "1 to 256"},
        {"hy_v4", "hy_v4.hyper_connection.count", 1, "2 to 4"},
        {"hy_v4", "hy_v4.hyper_connection.count", 2, "hc_attn_fn.weight"},
        {"hy_v4", "hy_v4.attention.indexer.key_length", 3, "the 4 that are rotated"},
        {"deepseek4", "deepseek4.hash_layer_count", 3, "ffn_gate_tid2eid.weight"},
        {"deepseek4", "deepseek4.expert_count", 4, "8"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
    static const uint32_t unknown[] = {0, 4, 64, 4, 0}, few[] = {0, 4, 128, 4};
    struct model_edit m = golden("deepseek4");
    model_edit_set_array(&m, "deepseek4.attention.compress_ratios", unknown, 5);
    refused(&m, "layer 2 has 64", "0, 4 or 128");
    m = golden("deepseek4");
    model_edit_set_array(&m, "deepseek4.attention.compress_ratios", few, 4);
    refused(&m, "of 4 numbers", "for each layer");
}

static void other_architectures_are_refused_with_what_they_are(void **state)
{
    static const struct {
        const char *model, *arch, *says;
    } all[] = {{"llama", "gemma3", "it has no experts"}, {"llama", "llada-moe", "diffusion"},
               {"qwen3moe", "rnd1", "diffusion"},        {"llama", "nomic-bert-moe", "embeddings"},
               {"llama", "dflash", "draft model"},       {"qwen3moe", "dream llada", "\"dream llada\" is not known ("}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct model_edit m = golden(all[i].model);
        char key[64];
        snprintf(key, sizeof key, "%s.expert_count", all[i].arch);
        if (strcmp(all[i].model, "llama") != 0)
            model_edit_set_u32(&m, key, 8);
        model_edit_set(&m, "general.architecture",
                       (struct gguf_value){.type = GGUF_STRING, .str = {all[i].arch, strlen(all[i].arch)}});
        refused(&m, all[i].arch, all[i].says);
    }
}

static void impossible_recurrent_layers_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"qwen35moe", "qwen35moe.ssm.conv_kernel", 17, "2 to 16"},
        {"granitehybrid", "granitehybrid.ssm.conv_kernel", 1, "2 to 16"},
        {"granitehybrid", "granitehybrid.ssm.group_count", 3, "multiple of the groups"},
        {"granitehybrid", "granitehybrid.ssm.inner_size", 63, "divides inner"},
        {"granitehybrid", "granitehybrid.ssm.state_size", 0, "state 0"},
        {"jamba", "jamba.ssm.conv_kernel", 1, "2 to 16"},
        {"jamba", "jamba.ssm.time_step_rank", 0, "rank 0"},
        {"jamba", "jamba.ssm.time_step_rank", 7, "blk.0.ssm_x.weight"},
        {"jamba", "jamba.ssm.inner_size", 63, "blk.0.ssm_conv1d.weight"},
        {"jamba", "jamba.ssm.state_size", 0, "state 0"},
        {"minimax_01", "minimax-01.attention.head_count", 6, "a power of 2"},
        {"minimax_01", "minimax-01.attention.key_length", 0, "key_length is 0"},
        {"minimax_01", "minimax-01.attention.key_length", 8, "blk.0.attn_qkv.weight"},
        {"lfm2", "lfm2.shortconv.l_cache", 0, "2 to 16"},
        {"lfm2", "lfm2.shortconv.l_cache", 4, "shortconv.conv.weight"},
        {"kimi_linear", "kimi-linear.ssm.conv_kernel", 17, "2 to 16"},
        {"kimi_linear", "kimi-linear.ssm.conv_kernel", 3, "blk.0.ssm_conv1d_q.weight"},
        {"kimi_linear", "kimi-linear.kda.head_dim", 0, "kda.head_dim is 0"},
        {"kimi_linear", "kimi-linear.kda.head_dim", 25, "blk.0.ssm_conv1d_q.weight"},
        {"kimi_linear", "kimi-linear.attention.head_count", 0, "attention.head_count 0"},
        {"kimi_linear", "kimi-linear.attention.key_length_mla", 4, "4 rotated"},
        {"dots3note", "dots3note.attention.kv_lora_rank_swa", 16, "blk.1.attn_kv_a_mqa.weight"},
        {"dots3note", "dots3note.attention.key_length_mla_swa", 4, "6 heads of 0"},
        {"bailingmoe3", "bailingmoe3.kda.head_dim", 12, "blk.0.ssm_conv1d_q.weight"},
        {"kimi_k3", "kimi-k3.kda.head_dim", 12, "blk.0.ssm_conv1d_q.weight"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
    struct model_edit boundless = golden("glm5next");
    model_edit_drop(&boundless, "glm5next.kda.gate_lower_bound");
    refused(&boundless, "glm5next.kda.gate_lower_bound", "is missing");
    struct model_edit growing = golden("bailingmoe3");
    model_edit_set_f32(&growing, "bailingmoe3.kda.gate_lower_bound", 5);
    refused(&growing, "bailingmoe3.kda.gate_lower_bound", "expected -100 to -0.001");
    struct model_edit m = golden("llama"); /* no heads of keys where no layer may be recurrent */
    model_edit_set_u32(&m, "llama.attention.head_count_kv", 0);
    refused(&m, "0 KV heads", "expected a multiple");
}

static void impossible_ngrams_runs_and_gates_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"qwen4exp", "qwen4exp.hyper_connection.count", 1, "2 to 4"},
        {"qwen4exp", "qwen4exp.hyper_connection.count", 3, "hc_attn_norm.weight"},
        {"qwen4exp", "qwen4exp.hyper_connection.low_rank", 0, "at least 1"},
        {"qwen4exp", "qwen4exp.hyper_connection.low_rank", 7, "hc_attn_down.weight"},
        {"qwen4exp", "qwen4exp.attention.indexer.top_k", 3, "a run of 4"},
        {"qwen4exp", "qwen4exp.attention.indexer.head_count", 0, "0 heads"},
        {"qwen4exp", "qwen4exp.attention.indexer.key_length", 2, "the 4 that are rotated"},
        {"qwen4exp", "qwen4exp.ple.ngram_size", 1, "2 to 8 tokens"},
        {"qwen4exp", "qwen4exp.ple.ngram_size", 9, "2 to 8 tokens"},
        {"qwen4exp", "qwen4exp.ple.ngram_size", 4, "ple.layer_multipliers"},
        {"qwen4exp", "qwen4exp.ple.heads_per_ngram", 0, "1 to 64 rows"},
        {"qwen4exp", "qwen4exp.ple.heads_per_ngram", 33, "1 to 64 rows"},
        {"qwen4exp", "qwen4exp.ple.heads_per_ngram", 3, "ple.head_offsets"},
        {"qwen4exp", "qwen4exp.ple.conv_kernel", 1, "expected 2 to 6"},
        {"qwen4exp", "qwen4exp.ple.conv_kernel", 7, "expected 2 to 6"},
        {"qwen4exp", "qwen4exp.ple.conv_kernel", 3, "ple_conv1d.weight"},
        {"qwen4exp", "qwen4exp.embedding_length_per_layer_input", 16, "per_layer_token_embd.weight has shape [8, 97"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
    static const uint32_t runs[] = {0, 0, 0, 65}, run_of_one[] = {0, 0, 0, 1}, two_layers[] = {0, 2}, attention[] = {3};
    static const uint64_t far[] = {0, 23, 46, 78}, empty[] = {23, 22, 0, 20}, huge[] = {0, 1ull << 33, 0, 0};
    const struct {
        const char *key;
        struct gguf_value v;
        const char *why;
    } arrays[] = {
        {"attention.compress_ratios", {GGUF_ARRAY, .arr = {GGUF_U32, 4, runs}}, "layer 3 has 65"},
        {"attention.compress_ratios", {GGUF_ARRAY, .arr = {GGUF_U32, 4, run_of_one}}, "0, or 2 to 64"},
        {"ple.layers", {GGUF_ARRAY, .arr = {GGUF_U32, 2, two_layers}}, "one recurrent layer"},
        {"ple.layers", {GGUF_ARRAY, .arr = {GGUF_U32, 1, attention}}, "one recurrent layer"},
        {"ple.layers", {GGUF_U32, .u = 1}, "one recurrent layer"},
        {"ple.head_offsets", {GGUF_ARRAY, .arr = {GGUF_U64, 4, huge}}, "number 1 is 8589934592"},
        {"ple.head_offsets", {GGUF_ARRAY, .arr = {GGUF_U32, 4, runs}}, "64-bit integers"},
        {"ple.head_vocab_sizes", {GGUF_ARRAY, .arr = {GGUF_U64, 4, empty}}, "number 2 is 0"},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        char key[64];
        struct model_edit m = golden("qwen4exp");
        snprintf(key, sizeof key, "qwen4exp.%s", arrays[i].key);
        model_edit_set(&m, key, arrays[i].v);
        refused(&m, arrays[i].key, arrays[i].why);
    }
    struct model_edit m = golden("qwen4exp");
    model_edit_set(&m, "qwen4exp.ple.head_offsets", (struct gguf_value){GGUF_ARRAY, .arr = {GGUF_U64, 4, far}});
    refused(&m, "per_layer_token_embd.weight", "[8, 97, 1], expected [8, 98 or more]");
    m = golden("qwen4exp");
    model_edit_drop_tensor(&m, "per_layer_token_embd.weight");
    refused(&m, "per_layer_token_embd.weight", "is missing");
    m = golden("qwen4exp"); /* attention to all positions, and no n-grams */
    model_edit_drop(&m, "qwen4exp.attention.compress_ratios");
    model_edit_drop(&m, "qwen4exp.ple.layers");
    accepted(&m);
}

/* Without a period there are none, and what weighs them is not asked for. */
static void residuals_are_banked_by_a_few_layers(void **state)
{
    static const char *const names[] = {"blk.3.attn_res_score.weight", "blk.0.ffn_res_score.weight",
                                        "output_res_score.weight"};
    struct model_edit m = golden("kimi_k3");
    model_edit_drop(&m, "kimi-k3.attn_res.block_size");
    refused(&m, "kimi-k3.attn_res.block_size", "is missing");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        m = golden("kimi_k3");
        model_edit_drop_tensor(&m, names[i]);
        refused(&m, names[i], "is missing");
        m = golden("kimi_k3");
        model_edit_drop_tensor(&m, names[i]);
        model_edit_set_u32(&m, "kimi-k3.attn_res.block_size", 0);
        accepted(&m);
    }
    m = golden("kimi_k3");
    model_edit_set_u32(&m, "kimi-k3.attn_res.block_size", UINT32_MAX);
    refused(&m, "kimi-k3.attn_res.block_size", "expected at most");
    m = golden("kimi_k3");
    model_edit_drop_tensor(&m, "blk.2.ffn_routed_up.weight");
    refused(&m, "blk.2.ffn_routed_up.weight", "is missing");
    m = golden("kimi_k3");
    model_edit_drop_tensor(&m, "blk.1.attn_gate.weight");
    refused(&m, "blk.1.attn_gate.weight", "is missing");
}

static void more_layers_than_can_be_told_apart_are_refused(void **state)
{
    struct model_edit m = golden("llama");
    model_edit_set_u32(&m, "llama.block_count", 16000);
    refused(&m, "16000 layers", "expected 1 to 4096");
    m = golden("llama");
    model_edit_set_u32(&m, "llama.nextn_predict_layers", 4);
    refused(&m, "4 layers, 4 of them", "expected 1");
    m = golden("llama");
    model_edit_set_u32(&m, "llama.embedding_length", 0);
    refused(&m, "llama.embedding_length", "at least 1");
}

/* Without a key for the heads' length it follows from their number, which may differ from layer to layer. */
static void layers_that_rotate_differently_are_refused(void **state)
{
    static float zeros[64 * 64];
    const uint32_t heads[] = {4, 2, 4, 4};
    struct model_edit m = golden("llama");
    model_edit_drop(&m, "llama.attention.key_length");
    model_edit_drop(&m, "llama.attention.value_length");
    model_edit_drop(&m, "llama.rope.dimension_count");
    model_edit_set_array(&m, "llama.attention.head_count", heads, 4);
    model_edit_put(&m, "blk.1.attn_k.weight", 64, 64, 1, zeros);
    model_edit_put(&m, "blk.1.attn_v.weight", 64, 64, 1, zeros);
    refused(&m, "32 elements in layer 1", "16 in layers before");
    m = golden("exaone_moe");
    model_edit_set_u32(&m, "exaone-moe.rope.dimension_count_swa", 10);
    refused(&m, "exaone-moe.rope.dimension_count_swa", "at most the 8");
    m = golden("exaone_moe");
    model_edit_set_u32(&m, "exaone-moe.rope.dimension_count_swa", 8);
    accepted(&m);
}

static void layers_that_rotate_half_of_a_head_have_whole_pairs(void **state)
{
    static const float divisors[3] = {1, 1, 1};
    struct model_edit m = golden("step35");
    model_edit_set_u32(&m, "step35.rope.dimension_count", 6);
    model_edit_put(&m, "rope_freqs.weight", 3, 1, 1, divisors);
    refused(&m, "step35.rope.dimension_count", "a multiple of 4");
    m = golden("step35");
    model_edit_drop(&m, "step35.attention.sliding_window_pattern");
    refused(&m, "step35.attention.sliding_window_pattern", "missing");
}

static void both_sets_of_long_divisors_are_needed(void **state)
{
    static const char *const names[] = {"rope_factors_long.weight", "rope_factors_short.weight"};
    const struct gguf_value type = {.type = GGUF_STRING, .str = {"longrope", 8}};
    struct model_edit m = golden("phimoe");
    model_edit_set(&m, "phimoe.rope.scaling.type", type);
    accepted(&m);
    for (int i = 0; i < 2; i++) {
        static const float wrong[3] = {1, 1, 1};
        m = golden("phimoe");
        model_edit_set(&m, "phimoe.rope.scaling.type", type);
        model_edit_drop_tensor(&m, names[i]);
        refused(&m, "phimoe.rope.scaling.type is \"longrope\"", names[i]);
        m = golden("phimoe");
        model_edit_put(&m, names[i], 3, 1, 1, wrong);
        refused(&m, names[i], "expected [4, 1, 1]");
    }
}

static void norms_with_biases_have_them_in_all_layers(void **state)
{
    static const char *const names[] = {"output_norm.bias", "output.bias", "blk.2.attn_norm.bias",
                                        "blk.0.ffn_norm.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_edit m = golden("phimoe");
        model_edit_drop_tensor(&m, names[i]);
        refused(&m, names[i], "is missing");
    }
}

static void limits_are_one_for_all_layers_or_one_for_each(void **state)
{
    static const float limits[7] = {0, 7, 0, 0, 16, 0, -1};
    const struct gguf_value seven = {.type = GGUF_ARRAY, .arr = {.type = GGUF_F32, .n = 7, .data = limits}};
    struct gguf_value six = seven;
    struct model_edit m = golden("step35");
    model_edit_set(&m, "step35.swiglu_clamp_exp", seven);
    refused(&m, "step35.swiglu_clamp_exp", "has 7 elements, expected one for each of 6 layers");
    six.arr.n = 6;
    m = golden("step35");
    model_edit_set(&m, "step35.swiglu_clamp_exp", six);
    accepted(&m);
    six.arr.data = limits + 1;
    m = golden("step35");
    model_edit_set(&m, "step35.swiglu_clamp_shexp", six);
    refused(&m, "step35.swiglu_clamp_shexp\" is -1", "expected 0 or");
    m = golden("step35");
    model_edit_set_f32(&m, "step35.swiglu_clamp_exp", 7);
    accepted(&m);
    const uint32_t whole[6] = {0};
    m = golden("step35");
    model_edit_set_array(&m, "step35.swiglu_clamp_exp", whole, 6);
    refused(&m, "step35.swiglu_clamp_exp", "array of f32");
}

/* Of multi-token prediction all is there, or, where it was left out of the file, nothing is asked for. */
static void multi_token_prediction_is_whole_or_left_out(void **state)
{
    static float zeros[2 * 32 * 33];
    struct model_edit m = golden("hy_v3");
    accepted(&m);
    m = golden("hy_v3");
    model_edit_drop_tensor(&m, "blk.3.nextn.hnorm.weight");
    refused(&m, "tensor blk.3.nextn.hnorm.weight is missing", "");
    m = golden("hy_v3");
    model_edit_put(&m, "blk.3.nextn.eh_proj.weight", 64, 33, 1, zeros);
    refused(&m, "tensor blk.3.nextn.eh_proj.weight", "[64, 32");
    m = golden("hy_v3");
    model_edit_drop_tensor(&m, "blk.3.attn_k.weight");
    refused(&m, "tensor blk.3.attn_k.weight is missing", "");
    m = golden("hy_v3");
    model_edit_drop_tensor(&m, "blk.3.nextn.eh_proj.weight");
    model_edit_drop_tensor(&m, "blk.3.attn_k.weight");
    accepted(&m);
}

static void llama4_rotates_whole_heads_in_every_layer(void **state)
{
    static float zeros[32 * 32];
    const uint32_t heads[] = {4, 2, 4, 4, 4};
    struct model_edit m = golden("llama4");
    model_edit_drop(&m, "llama4.attention.key_length");
    model_edit_drop(&m, "llama4.attention.value_length");
    model_edit_set_array(&m, "llama4.attention.head_count", heads, 5);
    model_edit_put(&m, "blk.1.attn_k.weight", 32, 32, 1, zeros);
    model_edit_put(&m, "blk.1.attn_v.weight", 32, 32, 1, zeros);
    refused(&m, "llama4.rope.dimension_count is 8", "16");
}

static void borrowers_have_as_many_kv_heads_as_lenders(void **state)
{
    const uint32_t kv_heads[] = {1, 1, 1, 3, 1, 1};
    struct model_edit m = golden("gemma4_shared");
    model_edit_set_array(&m, "gemma4.attention.head_count_kv", kv_heads, 6);
    refused(&m, "layer 3 has 3 KV heads", "layer 1, which has 1");
}

static void gates_are_as_long_as_values(void **state)
{
    struct model_edit m = golden("qwen35moe");
    model_edit_set_u32(&m, "qwen35moe.attention.value_length", 16);
    refused(&m, "keys of 32 and values of 16", "gate");
}

static void impossible_experts_without_a_gate_are_refused(void **state)
{
    static const float zeros[41 * 32 * 8];
    const uint32_t n_used[] = {0, 3, 0, 0, 0, 0, 2};
    struct model_edit m = golden("nemotron_h_moe");
    model_edit_set_u32(&m, "nemotron_h_moe.expert_feed_forward_length", 41);
    model_edit_put(&m, "blk.1.ffn_down_exps.weight", 41, 32, 8, zeros);
    model_edit_put(&m, "blk.1.ffn_up_exps.weight", 32, 41, 8, zeros);
    refused(&m, "layer 1 are 41 wide", "even");
    m = golden("nemotron_h_moe");
    model_edit_put(&m, "blk.1.ffn_up_exps.weight", 32, 20, 8, zeros);
    refused(&m, "blk.1.ffn_up_exps.weight", "expected");
    m = golden("nemotron_h_latent");
    model_edit_put(&m, "blk.1.ffn_latent_up.weight", 16, 32, 1, zeros);
    refused(&m, "blk.1.ffn_latent_up.weight", "expected");
    m = golden("nemotron_h_latent");
    model_edit_set_array(&m, "nemotron_h_moe.expert_used_count", n_used, 7);
    refused(&m, "nemotron_h_moe.expert_used_count is 0 of 8", "expected 1");
}

static void impossible_adjugates_of_experts_are_refused(void **state)
{
    static const struct wrong_number wrong[] = {
        {"grovemoe", "grovemoe.experts_per_group", 0, "is 0"},
        {"grovemoe", "grovemoe.experts_per_group", 3, "a divisor of the 8 experts"},
        {"grovemoe", "grovemoe.experts_per_group", 4, "blk.0.ffn_gate_chexps.weight"},
        {"grovemoe", "grovemoe.expert_chunk_feed_forward_length", 11, "blk.0.ffn_gate_chexps.weight"},
    };
    refuse_numbers(wrong, sizeof wrong / sizeof *wrong);
    struct model_edit m = golden("grovemoe");
    model_edit_drop(&m, "grovemoe.expert_group_scale");
    refused(&m, "grovemoe.expert_group_scale", "is missing");
}

/* The epsilon may be that of layer norms. */
static void an_epsilon_must_be_there(void **state)
{
    struct model_edit m = golden("nemotron_h");
    assert_true(model_edit_drop(&m, "nemotron_h.attention.layer_norm_rms_epsilon"));
    accepted(&m);
    m = golden("nemotron_h");
    model_edit_drop(&m, "nemotron_h.attention.layer_norm_rms_epsilon");
    model_edit_drop(&m, "nemotron_h.attention.layer_norm_epsilon");
    refused(&m, "nemotron_h.attention.layer_norm_rms_epsilon", "missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unchanged_copies_are_accepted),
        cmocka_unit_test(floats_out_of_range_are_refused),
        cmocka_unit_test(counts_whose_products_overflow_are_refused),
        cmocka_unit_test(temperatures_without_a_length_are_refused),
        cmocka_unit_test(impossible_indexes_of_positions_are_refused),
        cmocka_unit_test(an_index_of_runs_has_two_sets_of_names),
        cmocka_unit_test(impossible_indexes_of_blocks_are_refused),
        cmocka_unit_test(impossible_compressed_caches_are_refused),
        cmocka_unit_test(other_architectures_are_refused_with_what_they_are),
        cmocka_unit_test(impossible_recurrent_layers_are_refused),
        cmocka_unit_test(impossible_ngrams_runs_and_gates_are_refused),
        cmocka_unit_test(residuals_are_banked_by_a_few_layers),
        cmocka_unit_test(more_layers_than_can_be_told_apart_are_refused),
        cmocka_unit_test(layers_that_rotate_differently_are_refused),
        cmocka_unit_test(layers_that_rotate_half_of_a_head_have_whole_pairs),
        cmocka_unit_test(both_sets_of_long_divisors_are_needed),
        cmocka_unit_test(norms_with_biases_have_them_in_all_layers),
        cmocka_unit_test(limits_are_one_for_all_layers_or_one_for_each),
        cmocka_unit_test(multi_token_prediction_is_whole_or_left_out),
        cmocka_unit_test(llama4_rotates_whole_heads_in_every_layer),
        cmocka_unit_test(borrowers_have_as_many_kv_heads_as_lenders),
        cmocka_unit_test(gates_are_as_long_as_values),
        cmocka_unit_test(impossible_experts_without_a_gate_are_refused),
        cmocka_unit_test(impossible_adjugates_of_experts_are_refused),
        cmocka_unit_test(an_epsilon_must_be_there),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
