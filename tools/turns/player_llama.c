/* llama.cpp, and with -DIK_LLAMA ik_llama.cpp, for turns.py, with their fastest settings: weights repacked while
 * loading, flash attention, an F16 cache. */
#include "player.h"
#include <llama.h>

struct engine {
    struct llama_context *context;
    int n_past; /* ik_llama.cpp wants to be told */
};

static void only_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

struct engine *engine_open(const char *path, int n_threads, int n_ctx)
{
    static struct engine e;
    struct llama_model_params m = llama_model_default_params();
    struct llama_context_params c = llama_context_default_params();
    llama_log_set(only_errors, NULL);
    m.n_gpu_layers = 0;
#ifdef IK_LLAMA
    m.use_mmap = false; /* or nothing is repacked */
    m.repack_tensors = true;
    c.flash_attn = true;
#else
    ggml_backend_load_all();
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
#endif
    c.n_ctx = c.n_batch = c.n_ubatch = (uint32_t)n_ctx;
    c.n_threads = c.n_threads_batch = n_threads;
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(path, m);
    e.context = model ? llama_init_from_model(model, c) : NULL;
    if (!e.context) {
        fprintf(stderr, "%s: llama.cpp can't load this\n", path);
        exit(1);
    }
    return &e;
}

void engine_reset(struct engine *e)
{
#ifdef IK_LLAMA
    llama_kv_cache_clear(e->context);
    e->n_past = 0;
#else
    llama_memory_clear(llama_get_memory(e->context), true);
#endif
}

void engine_eval(struct engine *e, int32_t *ids, int n)
{
#ifdef IK_LLAMA
    struct llama_batch batch = llama_batch_get_one(ids, n, e->n_past, 0);
    e->n_past += n;
#else
    struct llama_batch batch = llama_batch_get_one(ids, n);
#endif
    if (llama_decode(e->context, batch) != 0 || !llama_get_logits_ith(e->context, -1)) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
}

double engine_memory(struct engine *e)
{
    (void)e;
    return 0;
}
