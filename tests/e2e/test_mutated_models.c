/* Golden models whose metadata and tensors were changed at random: each ends in a sentence or a clean run, within 2
 * seconds of processor time (ten times that under a sanitizer) and 512 MB. Golden models in random shapes: each that
 * the loader takes runs, and gives the same logits in one piece and token by token.
 *
 * usage: test_mutated_models; MOEBIUS_MUTATIONS and MOEBIUS_SHAPES say how many (`make soak`: 10,000 and 1,000),
 * MOEBIUS_SEED where to begin, MOEBIUS_CASE that this case alone runs, in this process, and says what it changes. */
#include "../unit/model_edit.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/temp_folder.h"
#include "base/random.h"
#include "jobs/inspect.h"
#include "moebius/moebius.h"

#if defined(__SANITIZE_ADDRESS__)
enum { SLOWER = 10, ADDRESS_MB = 0 }; /* a sanitizer's own addresses can't be bounded */
#else
enum { SLOWER = 1, ADDRESS_MB = 1536 }; /* blocks of addresses are larger than what is used of them */
#endif

enum {
    MAX_SECONDS = 2 * SLOWER,
    MAX_RSS_MB = 512,
    N_POOL = 1 << 20, /* numbers to fill tensors with */
    MAX_MODEL = 128,
    N_PROMPT = 24,
    N_DECODE = 3,
    RAN = 100, /* no status with which a sanitizer ends a process */
    REFUSED,
    WRONG
};

static struct model_edit models[MAX_MODEL];
static int n_model;
static pid_t parent; /* a child in which an assert fails comes back to where tests are run */
static float numbers[N_POOL];
static bool is_verbose;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (is_verbose)
        vprintf(fmt, args);
    va_end(args);
}

static uint32_t below(struct random *r, uint32_t n)
{
    return random_u32(r) % n;
}

/* ---- running ------------------------------------------------------------------------------------------------- */

static bool fail_run(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return false;
}

/* Feeds a prompt and a few tokens, `piece` at a time, and keeps the last logits; an error must have a sentence. */
static moebius_status feed(moebius_session *s, const int32_t *ids, size_t n, size_t piece, moebius_error *error)
{
    for (size_t i = 0; i < n; i += piece)
        if (moebius_session_eval(s, ids + i, n - i < piece ? n - i : piece, error) != MOEBIUS_OK)
            return error->status;
    return MOEBIUS_OK;
}

static bool is_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* Guesses how a text goes on. Whatever the numbers are, guesses are tokens. */
static moebius_status guess(moebius_engine *engine, moebius_session *s, moebius_error *error)
{
    enum { MOST = 3 };
    int32_t ids[MOST];
    size_t n = 0;
    const moebius_guess_item item = {.session = s, .most = MOST, .ids = ids, .n = &n};
    moebius_status status = moebius_guess_batch(engine, &item, 1, error);
    for (size_t i = 0; i < n && status == MOEBIUS_OK; i++)
        if (ids[i] < 0 || ids[i] >= moebius_n_vocab(engine)) {
            fail_run("a guess is no token");
            abort();
        }
    return status;
}

/* RAN, REFUSED or WRONG. */
static int run_session(moebius_engine *engine, struct random *r, moebius_error *error)
{
    moebius_session *s = NULL;
    const moebius_session_options options = {
        .n_ctx = 2 * N_PROMPT, .n_batch = below(r, 2) ? 64 : 0, .kv = (moebius_kv_type)below(r, 3)};
    int32_t ids[N_PROMPT + N_DECODE], n_vocab = moebius_n_vocab(engine);
    for (int i = 0; i < N_PROMPT + N_DECODE; i++)
        ids[i] = (int32_t)below(r, (uint32_t)n_vocab);
    size_t n = (size_t)n_vocab;
    float *whole = malloc(n * sizeof *whole);
    bool is_equal = true;
    moebius_status status = moebius_session_open(&s, engine, &options, error);
    if (status == MOEBIUS_OK)
        status = feed(s, ids, N_PROMPT, N_PROMPT, error);
    if (status == MOEBIUS_OK) {
        memcpy(whole, moebius_session_logits(s), n * sizeof *whole);
        status = feed(s, ids + N_PROMPT, N_DECODE, 1, error);
    }
    if (status == MOEBIUS_OK && moebius_has_mtp(engine))
        status = guess(engine, s, error);
    if (status == MOEBIUS_OK) {
        int64_t pos = moebius_session_truncate(s, N_PROMPT / 2);
        status = feed(s, ids + pos, N_PROMPT - (size_t)pos, 1, error);
        is_equal = status != MOEBIUS_OK || is_same(whole, moebius_session_logits(s), n);
    }
    moebius_session_close(&s);
    free(whole);
    if (!is_equal)
        fail_run("token by token other logits than in one piece");
    return is_equal ? status == MOEBIUS_OK ? RAN : REFUSED : WRONG;
}

static bool inspect_file(const char *path, struct random *r)
{
    struct err e = {0};
    FILE *f = fopen("/dev/null", "w");
    err_code code = inspect_print(f, path, &(struct inspect_params){.json = below(r, 2)}, &e);
    fclose(f);
    return code == ERR_OK || e.text[0] || fail_run("inspect: an error without a sentence");
}

static int run_file(const char *path, struct random *r)
{
    moebius_engine *engine = NULL;
    moebius_error error = {0};
    const moebius_engine_options options = {.n_threads = 1 + (below(r, 4) == 0),
                                            .sort_cutoff = below(r, 2) ? 1 : 1000,
                                            .expert_ram_share = below(r, 3) ? 0 : 0.5,
                                            .reference = below(r, 8) == 0,
                                            .check_ops = below(r, 8) == 0,
                                            .mtp = below(r, 4) != 0};
    moebius_status status = moebius_engine_open(&engine, path, &options, &error);
    int result = status == MOEBIUS_OK ? run_session(engine, r, &error) : REFUSED;
    moebius_engine_close(&engine);
    say("%s\n", result == REFUSED ? error.text : "it ran");
    if (result == REFUSED && !error.text[0]) {
        fail_run("an error without a sentence");
        return WRONG;
    }
    return inspect_file(path, r) ? result : WRONG;
}

static int run_model(const struct model_edit *m, struct random *r)
{
    struct err e = {0};
    size_t n;
    struct temp_path p = temp_path(&folder, "mutated.gguf");
    void *bytes = model_edit_bytes(m, &n, &e);
    if (!bytes) {
        say("the writer refuses: %s\n", e.text);
        return REFUSED;
    }
    FILE *f = fopen(p.s, "wb");
    bool ok = f && fwrite(bytes, 1, n, f) == n;
    ok = f && fclose(f) == 0 && ok;
    mem_free(bytes);
    return ok ? run_file(p.s, r) : WRONG;
}

/* ---- shapes -------------------------------------------------------------------------------------------------- */

/* Random numbers for a tensor of this shape: as floats where its type can't hold its rows. False: too large. */
static bool reshape(struct model_edit *m, struct model_edit_tensor *t, const uint64_t ne[3])
{
    uint64_t n = 1;
    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(n, ne[i], &n) || n > N_POOL)
            return false;
    model_edit_put(m, t->name, ne[0], ne[1], ne[2], numbers);
    return true;
}

/* Gives a tensor that the sentence names the shape that was expected. */
static bool repair_one(struct model_edit *m, const char *text)
{
    char name[256];
    unsigned long long ne[3];
    const char *at = strstr(text, "tensor ");
    if (!at || sscanf(at, "tensor %255s", name) != 1)
        return false;
    struct model_edit_tensor *t = model_edit_tensor(m, name);
    if (strstr(at, " is missing") && !t && m->n_tensor < 1000) {
        model_edit_put(m, name, 1, 1, 1, numbers);
        return true;
    }
    at = strstr(at, "expected [");
    if (!at || !t || sscanf(at, "expected [%llu, %llu, %llu]", &ne[0], &ne[1], &ne[2]) != 3)
        return false;
    return reshape(m, t, (const uint64_t[3]){ne[0], ne[1], ne[2]});
}

/* Makes the tensors what the metadata asks for, as far as the loader says so. True when it takes the model. */
static bool repair(struct model_edit *m)
{
    struct err e = {0};
    for (int i = 0; i < 500; i++) {
        if (model_edit_load(m, &e) == ERR_OK)
            return true;
        if (!repair_one(m, e.text))
            break;
    }
    say("not repaired: %s\n", e.text);
    return false;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && !strcmp(s + n - n_end, end);
}

/* Keys that say how large something is, and up to what to try them. */
static const struct {
    const char *key;
    uint32_t most;
} sizes[] = {
    {".embedding_length", 80},
    {".block_count", 6},
    {".feed_forward_length", 70},
    {".expert_feed_forward_length", 50},
    {".expert_count", 20},
    {".expert_used_count", 6},
    {".expert_group_count", 4},
    {".expert_group_used_count", 3},
    {".attention.head_count", 12},
    {".attention.head_count_kv", 4},
    {".attention.key_length", 40},
    {".attention.value_length", 40},
    {".attention.key_length_swa", 40},
    {".attention.value_length_swa", 40},
    {".attention.key_length_mla", 40},
    {".attention.value_length_mla", 40},
    {".attention.q_lora_rank", 40},
    {".attention.kv_lora_rank", 80},
    {".attention.sliding_window", 40},
    {".attention.shared_kv_layers", 5},
    {".rope.dimension_count", 40},
    {".rope.dimension_count_swa", 40},
    {".full_attention_interval", 5},
    {".embedding_length_per_layer_input", 20},
    {".ssm.state_size", 40},
    {".ssm.group_count", 3},
    {".ssm.time_step_rank", 6},
    {".ssm.inner_size", 96},
    {".ssm.conv_kernel", 6},
};

/* A key of the family that says a size gets another. */
static void resize(struct model_edit *m, struct random *r)
{
    size_t which = below(r, sizeof sizes / sizeof *sizes);
    uint32_t v = 1 + below(r, sizes[which].most);
    if (below(r, 2))
        v = (v + 7) / 8 * 8;
    for (size_t i = 0; i < m->n_key; i++)
        if (ends_with(m->keys[i].key.s, sizes[which].key)) {
            say("%s = %u\n", m->keys[i].key.s, v);
            m->keys[i].value = (struct gguf_value){.type = GGUF_U32, .u = v};
        }
}

/* Another width of the shared expert, or of the routed ones: where the loader takes it from the tensors. */
static void resize_tensor(struct model_edit *m, struct random *r)
{
    struct model_edit_tensor *t = &m->tensors[below(r, (uint32_t)m->n_tensor)];
    bool is_row = ends_with(t->name, "ffn_down_exps.weight");
    if (!is_row && !ends_with(t->name, "ffn_gate_shexp.weight"))
        return;
    uint64_t ne[3] = {t->ne[0], t->ne[1], t->ne[2]};
    ne[is_row ? 0 : 1] = 1 + below(r, 50);
    say("%s: [%d, %d, %d]\n", t->name, (int)ne[0], (int)ne[1], (int)ne[2]);
    reshape(m, t, ne);
}

static int try_shape(struct random *r)
{
    struct model_edit m = models[below(r, (uint32_t)n_model)];
    say("%s\n", model_edit_find(&m, "general.name") ? model_edit_find(&m, "general.name")->str.s : "a model");
    for (int attempt = 0; attempt < 20; attempt++) {
        struct model_edit changed = m;
        changed.arena = (struct arena){0};
        changed.keys = arena_calloc(&changed.arena, m.n_key + MODEL_EDIT_SPARE, sizeof *m.keys);
        changed.tensors = arena_calloc(&changed.arena, 1000 + MODEL_EDIT_SPARE, sizeof *m.tensors);
        memcpy(changed.keys, m.keys, m.n_key * sizeof *m.keys);
        memcpy(changed.tensors, m.tensors, m.n_tensor * sizeof *m.tensors);
        for (uint32_t i = 0, n = 1 + below(r, 6); i < n; i++)
            resize(&changed, r);
        for (int i = 0; i < 20; i++)
            resize_tensor(&changed, r);
        int result = repair(&changed) ? run_model(&changed, r) : -1;
        model_edit_close(&changed);
        if (result >= 0)
            return result;
    }
    return REFUSED;
}

/* ---- mutations ----------------------------------------------------------------------------------------------- */

static uint64_t odd_number(struct random *r, uint64_t was)
{
    static const uint64_t all[] = {
        0,   1,   2,   3,    4,    5,     7,     8,       16,       31,         32,         33,         64,        100,
        255, 256, 257, 1000, 4096, 65535, 65536, 1 << 20, 1u << 30, 0x40000001, 0x7fffffff, 0x80000000, UINT32_MAX};
    switch (below(r, 4)) {
    case 0: return was + 1 - 2 * below(r, 2);
    case 1: return below(r, 2) ? was * 2 : was / 2;
    case 2: return below(r, 64);
    default: return all[below(r, sizeof all / sizeof *all)];
    }
}

static double odd_float(struct random *r, double was)
{
    static const double all[] = {NAN,   INFINITY, -INFINITY, 0,     -1,   1e-45, -1e-45, 1e-30, 1e-20, 1.1e-6,
                                 0.001, 0.5,      1,         1.001, 1000, 1e6,   1e12,   1e30,  3e38,  -3e38};
    return below(r, 3) ? all[below(r, sizeof all / sizeof *all)] : was * (random_unit(r) * 4 - 1);
}

static struct gguf_string odd_text(struct random *r)
{
    static const char *const all[] = {"",     "none",  "linear", "yarn",      "longrope",  "llama",        "gemma4",
                                      "gpt2", "mimo2", "%s%n",   "qwen3next", "deepseek2", "no-such-thing"};
    const char *s = all[below(r, sizeof all / sizeof *all)];
    return (struct gguf_string){s, strlen(s)};
}

static struct gguf_value odd_array(struct random *r, struct model_edit *m)
{
    uint32_t n = below(r, 4) ? 3 + below(r, 4) : below(r, 300), *all = arena_calloc(&m->arena, n + 1, sizeof *all);
    for (uint32_t i = 0; i < n; i++)
        all[i] = below(r, 4) ? 1 + below(r, 4) : (uint32_t)odd_number(r, 4);
    return (struct gguf_value){.type = GGUF_ARRAY,
                               .arr = {.type = below(r, 2) ? GGUF_U32 : GGUF_I32, .n = n, .data = all}};
}

static struct gguf_value odd_value(struct random *r, struct model_edit *m, uint64_t was)
{
    static const enum gguf_value_type types[] = {GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_I32, GGUF_U64, GGUF_I64};
    struct gguf_value v = {.type = GGUF_U32, .u = (uint32_t)odd_number(r, was)};
    switch (below(r, 8)) {
    case 0: v = odd_array(r, m); break;
    case 1: v = (struct gguf_value){.type = GGUF_STRING, .str = odd_text(r)}; break;
    case 2: v = (struct gguf_value){.type = GGUF_BOOL, .u = below(r, 2)}; break;
    case 3: v = (struct gguf_value){.type = below(r, 2) ? GGUF_F32 : GGUF_F64, .f = (float)odd_float(r, 1)}; break;
    case 4: v.type = types[below(r, sizeof types / sizeof *types)]; break;
    default: break;
    }
    return v;
}

/* A value of the same type, mostly. */
static struct gguf_value changed_value(struct random *r, struct model_edit *m, const struct gguf_value *was)
{
    struct gguf_value v = *was;
    if (below(r, 5) == 0)
        return odd_value(r, m, was->type == GGUF_U32 ? was->u : 1);
    switch (was->type) {
    case GGUF_F32: v.f = (float)odd_float(r, was->f); break;
    case GGUF_STRING: v.str = odd_text(r); break;
    case GGUF_BOOL: v.u = !was->u; break;
    case GGUF_ARRAY:
        v = below(r, 2) ? odd_array(r, m) : *was;
        if (v.arr.n > 1)
            v.arr.n -= below(r, 2);
        break;
    default: v.u = (uint32_t)odd_number(r, was->u); break;
    }
    return v;
}

/* One key gets another value, goes, or comes from another family. */
static void mutate_key(struct model_edit *m, struct random *r, const char *arch)
{
    const struct model_edit *from = below(r, 4) ? m : &models[below(r, (uint32_t)n_model)];
    const struct gguf_kv *kv = &from->keys[below(r, (uint32_t)from->n_key)];
    const char *dot = strchr(kv->key.s, '.');
    char key[256];
    if (!strncmp(kv->key.s, "tokenizer.", 10) && below(r, 20))
        return;
    snprintf(key, sizeof key, "%s", kv->key.s);
    if (from != m && dot && strncmp(kv->key.s, "tokenizer.", 10) != 0 && strncmp(kv->key.s, "general.", 8) != 0)
        snprintf(key, sizeof key, "%s%s", arch, dot);
    if (from == m && below(r, 8) == 0) {
        say("no %s\n", key);
        model_edit_drop(m, key);
    } else if (m->n_key < 100) {
        struct gguf_value v = from == m || below(r, 2) ? changed_value(r, m, &kv->value) : kv->value;
        say("%s: %s %lld %g %.20s\n", key, gguf_value_type_name(v.type),
            v.type == GGUF_F32 || v.type == GGUF_ARRAY ? 0LL : (long long)v.i, v.type == GGUF_F32 ? v.f : 0,
            v.type == GGUF_STRING ? v.str.s : "");
        model_edit_set(m, key, v);
    }
}

/* Numbers that no training gives. */
static void spoil(struct model_edit *m, struct model_edit_tensor *t, struct random *r)
{
    static const float all[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-45f, 0};
    uint64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *to = n <= N_POOL && !ends_with(t->name, "embd.weight") ? arena_calloc(&m->arena, n, sizeof *to) : NULL;
    uint32_t which = below(r, sizeof all / sizeof *all), share = below(r, 3);
    if (!to)
        return;
    say("%s: %g\n", t->name, (double)all[which]);
    for (uint64_t i = 0; i < n; i++)
        to[i] = share && below(r, share == 1 ? 2 : 50) ? numbers[i] : all[which];
    model_edit_put(m, t->name, t->ne[0], t->ne[1], t->ne[2], to);
}

static void mutate_tensor(struct model_edit *m, struct random *r)
{
    size_t i = below(r, (uint32_t)m->n_tensor), j = below(r, (uint32_t)m->n_tensor);
    struct model_edit_tensor *t = &m->tensors[i];
    uint64_t ne[3] = {t->ne[0], t->ne[1], t->ne[2]};
    const char *name = t->name;
    switch (below(r, 8)) {
    case 0:
        say("no %s\n", t->name);
        *t = m->tensors[--m->n_tensor];
        break;
    case 1:
        say("%s is %s\n", t->name, m->tensors[j].name);
        t->name = m->tensors[j].name;
        m->tensors[j].name = name;
        break;
    case 2: spoil(m, t, r); break;
    case 3: spoil(m, t, r); break;
    case 4: /* a tensor that some families have */
        if (m->n_tensor < 900) {
            const struct model_edit *from = &models[below(r, (uint32_t)n_model)];
            const struct model_edit_tensor *other = &from->tensors[below(r, (uint32_t)from->n_tensor)];
            say("also %s\n", other->name);
            if (!model_edit_tensor(m, other->name))
                m->tensors[m->n_tensor++] = *other;
        }
        break;
    default:
        ne[below(r, 3)] = 1 + odd_number(r, ne[0]) % 4000;
        say("%s: [%d, %d, %d]\n", t->name, (int)ne[0], (int)ne[1], (int)ne[2]);
        reshape(m, t, ne);
        break;
    }
}

static int try_mutation(struct random *r)
{
    struct model_edit m = models[below(r, (uint32_t)n_model)], was = m;
    m.arena = (struct arena){0};
    m.keys = arena_calloc(&m.arena, was.n_key + 100 + MODEL_EDIT_SPARE, sizeof *m.keys);
    m.tensors = arena_calloc(&m.arena, 1000 + MODEL_EDIT_SPARE, sizeof *m.tensors);
    memcpy(m.keys, was.keys, was.n_key * sizeof *m.keys);
    memcpy(m.tensors, was.tensors, was.n_tensor * sizeof *m.tensors);
    for (uint32_t i = 0, n = 1 + below(r, 3); i < n && m.n_tensor; i++)
        if (below(r, 3))
            mutate_key(&m, r, model_edit_find(&was, "general.architecture")->str.s);
        else
            mutate_tensor(&m, r);
    if (below(r, 3))
        (void)repair(&m);
    int result = run_model(&m, r);
    model_edit_close(&m);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------------------------- */

struct tally {
    int n_ran, n_refused, n_bad;
};

/* A case in a process of its own. */
static void run_case(int (*try_one)(struct random *r), uint64_t seed, int i, struct tally *tally)
{
    struct random r = random_seed(seed + (uint64_t)i);
    int status;
    struct rusage usage;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct rlimit cpu = {MAX_SECONDS, MAX_SECONDS},
                            address = {(rlim_t)ADDRESS_MB << 20, (rlim_t)ADDRESS_MB << 20};
        const struct rlimit core = {0, 0};
        static const int signals[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS}; /* cmocka's are for one process */
        for (size_t j = 0; j < sizeof signals / sizeof *signals; j++)
            signal(signals[j], SIG_DFL);
        setrlimit(RLIMIT_CORE, &core);
        setrlimit(RLIMIT_CPU, &cpu);
        if (ADDRESS_MB)
            setrlimit(RLIMIT_AS, &address);
        alarm(60 * SLOWER); /* of a busy machine: what hangs without computing */
        _exit(try_one(&r));
    }
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    long rss_mb = usage.ru_maxrss / 1024;
    bool ended = WIFEXITED(status) && (WEXITSTATUS(status) == RAN || WEXITSTATUS(status) == REFUSED);
    if (ended && rss_mb <= MAX_RSS_MB) {
        ++*(WEXITSTATUS(status) == RAN ? &tally->n_ran : &tally->n_refused);
        return;
    }
    tally->n_bad++;
    fprintf(stderr, "MOEBIUS_SEED=%llu MOEBIUS_CASE=%d: %s %d, %ld MB\n", (unsigned long long)seed, i,
            WIFSIGNALED(status) ? "signal" : "exit status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), rss_mb);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *s = getenv(variable);
    return s && *s ? strtoull(s, NULL, 10) : otherwise;
}

static void run_cases(const char *what, int (*try_one)(struct random *r), uint64_t n)
{
    struct tally tally = {0};
    if (getpid() != parent)
        _exit(WRONG);
    uint64_t seed = number_from("MOEBIUS_SEED", 1);
    if (getenv("MOEBIUS_CASE")) {
        is_verbose = true;
        struct random r = random_seed(seed + number_from("MOEBIUS_CASE", 0));
        printf("%s: ends with %d\n", what, try_one(&r));
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        run_case(try_one, seed, (int)i, &tally);
    printf("%s, seed %llu: %d ran, %d were refused, %d went wrong\n", what, (unsigned long long)seed, tally.n_ran,
           tally.n_refused, tally.n_bad);
    assert_int_equal(tally.n_bad, 0);
    assert_true(n == 0 || tally.n_ran > 0);
}

static void mutated_models_are_refused_or_run(void **state)
{
    run_cases("mutations", try_mutation, number_from("MOEBIUS_MUTATIONS", 200));
}

static void models_of_random_shapes_run(void **state)
{
    run_cases("shapes", try_shape, number_from("MOEBIUS_SHAPES", 40));
}

static int is_model(const struct dirent *d)
{
    return ends_with(d->d_name, ".gguf") && strncmp(d->d_name, "q_", 2) != 0;
}

static void open_models(void)
{
    struct dirent **files;
    int n = scandir(GOLDEN, &files, is_model, alphasort);
    for (int i = 0; i < n && n_model < MAX_MODEL; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", GOLDEN, files[i]->d_name);
        model_edit_open(&models[n_model++], path);
        free(files[i]);
    }
    free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutated_models_are_refused_or_run),
        cmocka_unit_test(models_of_random_shapes_run),
    };
    struct random r = random_seed(0);
    if (temp_folder_make(&folder))
        return 1;
    setenv("XDG_CACHE_HOME", folder.path, 1);
    for (int i = 0; i < N_POOL; i++)
        numbers[i] = (float)(random_unit(&r) * 2 - 1) / 4;
    open_models();
    parent = getpid();
    int failed = cmocka_run_group_tests_name("mutated models", tests, NULL, NULL);
    if (getpid() != parent)
        _exit(WRONG);
    for (int i = 0; i < n_model; i++)
        model_edit_close(&models[i]);
    temp_folder_remove(&folder);
    return failed;
}
