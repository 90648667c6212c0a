#define _POSIX_C_SOURCE 200809L
#include "cli/common.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/random.h"
#include "base/units_text.h"
#include "cli/gpu_files.h"
#include "cli/rank_run.h"
#include "cli/run_plan.h"
#include "cli/say.h"

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void print_log(void *user, enum moebius_log_level level, const char *line)
{
    say(level == MOEBIUS_LOG_WARN ? LOG_WARN : LOG_INFO, "%s", line);
}

void cli_progress_begin(struct progress *p, const char *what)
{
    *p = (struct progress){.what = isatty(STDERR_FILENO) ? what : NULL, .start_ns = clock_ns()};
    atomic_init(&p->shown_ns, p->start_ns);
}

bool cli_progress(void *progress, uint64_t done, uint64_t total)
{
    enum { EVERY_NS = 100 * 1000 * 1000 };
    struct progress *p = progress;
    int64_t now = clock_ns(), last = atomic_load(&p->shown_ns);
    /* one thread prints, and what is over at once shows nothing */
    if (p->what && now - last >= EVERY_NS && atomic_compare_exchange_strong(&p->shown_ns, &last, now))
        say_progress(
            "%s %5.1f%% of %s, %.2f GB/s, %s left ", p->what, 100.0 * (double)done / (double)total, units_size(total).s,
            (double)done / (double)(now - p->start_ns),
            units_duration((double)(total - done) / (double)(done ? done : 1) * (double)(now - p->start_ns) / 1e9).s);
    return !cli_interrupted();
}

struct load_progress {
    struct progress shown;
    const struct model_options *options;
};

static void load_progress(void *user, uint64_t done, uint64_t total)
{
    struct load_progress *p = user;
    (void)cli_progress(&p->shown, done, total);
    if (p->options->loading)
        p->options->loading(p->options->loading_user, done, total);
}

err_code cli_split_dirs(const char *text, struct dir_list *out, struct err *e)
{
    enum { MAX = sizeof out->dirs / sizeof *out->dirs };
    char *rest = NULL;
    *out = (struct dir_list){.text = mem_strdup(text)};
    if (!out->text)
        return err_nomem(e, strlen(text), "directories");
    for (char *dir = strtok_r(out->text, ",", &rest); dir; dir = strtok_r(NULL, ",", &rest)) {
        if (out->n == MAX) {
            cli_dirs_close(out);
            return err_set(e, ERR_USAGE, "%s: more than %d directories", text, MAX);
        }
        out->dirs[out->n++] = dir;
    }
    return out->n ? ERR_OK : err_set(e, ERR_USAGE, "\"%s\": expected a directory", text);
}

void cli_dirs_close(struct dir_list *l)
{
    mem_free(l->text);
    *l = (struct dir_list){0};
}

/* The place of a word among its choices: an enum of the public header; 0 when it was not given. */
static int choice(const char *word, const char *second, const char *third)
{
    return !word ? 0 : !strcmp(word, second) ? 1 : !strcmp(word, third) ? 2 : 0;
}

/* A GPU where nobody has said anything of devices: not for what is the processor's alone. */
static err_code take_unasked_gpu(const struct model_options *o, moebius_engine_options *out, struct err *e)
{
    bool is_for_cpu = o->devices || o->split || o->replicas.n_bytes || o->replicas.share > 0 || o->reference ||
                      o->hugetlb || o->car.threshold > 0;
    const char *gpu = is_for_cpu ? NULL : gpu_files_default();
    if (gpu && strcmp(gpu, "auto") != 0 && strspn(gpu, "0123456789") != strlen(gpu))
        return err_set(e, ERR_USAGE, "MOEBIUS_GPU=%s: expected auto, none or a GPU's number", gpu);
    out->gpu = gpu;
    return ERR_OK;
}

/* None is -1 there. */
static err_code take_cpu_moe(const struct model_options *o, moebius_engine_options *out, struct err *e)
{
    const char *text = o->n_cpu_moe;
    if (!text)
        return ERR_OK;
    if (!*text || strlen(text) > 4 || strspn(text, "0123456789") != strlen(text))
        return err_set(e, ERR_USAGE, "--n-cpu-moe %s: expected a number of layers, 0 to 9999", text);
    out->n_cpu_moe = strtol(text, NULL, 10);
    out->n_cpu_moe = out->n_cpu_moe ? out->n_cpu_moe : -1;
    out->gpu = out->gpu || out->devices ? out->gpu : "auto";
    return ERR_OK;
}

err_code cli_check_draft(const struct model_options *o, struct err *e)
{
    return o->n_draft && o->car.threshold > 0 ? err_set(e, ERR_USAGE, "--draft and --car: choose one") : ERR_OK;
}

err_code cli_check_model(const struct model_options *o, struct err *e)
{
    TRY(cli_check_draft(o, e));
    return o->path ? ERR_OK : err_set(e, ERR_USAGE, "no model: name one with -m FILE");
}

err_code cli_engine_options(const struct model_options *o, moebius_engine_options *out, struct dir_list *store,
                            struct err *e)
{
    *store = (struct dir_list){0};
    *out = moebius_default_engine_options();
    TRY(cli_check_model(o, e));
    if (o->store)
        TRY(cli_split_dirs(o->store, store, e));
    out->n_threads = (int)o->n_threads;
    out->reference = o->reference;
    out->check_ops = o->check_ops;
    out->sort_cutoff = o->sort_cutoff;
    out->tuning = o->tuning;
    out->ram_bytes = o->ram_bytes;
    out->state_bytes = o->state_bytes;
    out->expert_ram_bytes = o->expert_ram.n_bytes;
    out->expert_ram_share = o->expert_ram.share;
    out->policy = o->policy;
    out->deterministic = o->deterministic;
    out->prefetch = (moebius_prefetch)choice(o->prefetch, "on", "off");
    out->numa = o->numa && !strcmp(o->numa, "off") ? MOEBIUS_NUMA_OFF : MOEBIUS_NUMA_AUTO;
    out->hugetlb = o->hugetlb;
    out->devices = o->devices;
    out->gpu = o->gpu;
    if (!o->gpu)
        TRY(take_unasked_gpu(o, out, e));
    out->vram_bytes = o->vram_bytes;
    out->time_gpus = o->time_gpus;
    out->mtp = o->n_draft > 0 && !o->no_mtp;
    out->split = o->split;
    out->replica_bytes = o->replicas.n_bytes;
    out->replica_share = o->replicas.share;
    out->usage = o->cold ? NULL : o->usage ? o->usage : "";
    out->log = print_log;
    out->store_dirs = store->dirs;
    out->n_store_dirs = store->n;
    out->reader = (moebius_reader)choice(o->io, "io_uring", "pread");
    out->direct = (moebius_direct)choice(o->direct, "on", "off");
    out->ranks = rank_run_ranks();
    return take_cpu_moe(o, out, e);
}

/* A longer context than the model was trained with runs, but not well. */
static void check_context(const struct model_options *o, const moebius_engine *engine)
{
    int64_t n_train = moebius_n_ctx_train(engine);
    if (o->n_ctx > n_train && n_train > 0)
        say(LOG_WARN, "--ctx %lld: the model was trained with %lld tokens, what it says beyond them may be of no use",
            (long long)o->n_ctx, (long long)n_train);
}

err_code cli_open_engine(const struct model_options *o, struct opened *out, struct err *e)
{
    moebius_engine_options options;
    moebius_error error;
    struct load_progress progress = {.options = o};
    struct dir_list store;
    err_code code = cli_engine_options(o, &options, &store, e);
    if (code == ERR_OK) {
        cli_progress_begin(&progress.shown, o->quiet ? NULL : "loading");
        options.progress = load_progress;
        options.user = &progress;
        if (moebius_engine_open(&out->engine, o->path, &options, &error) != MOEBIUS_OK)
            code = err_adopt(e, &error);
        say_progress_end();
        if (code != ERR_OK)
            run_plan_advise(o, NULL, o->n_ctx, e);
        out->load_ns = clock_ns() - progress.shown.start_ns;
        if (code == ERR_OK)
            check_context(o, out->engine);
    }
    cli_dirs_close(&store);
    return code;
}

int cli_kv_type(const char *name)
{
    if (!name || !strcmp(name, "f16"))
        return MOEBIUS_KV_F16;
    return !strcmp(name, "f32") ? MOEBIUS_KV_F32 : MOEBIUS_KV_Q8_0;
}

err_code cli_session_options(const struct model_options *o, moebius_session_options *out, struct err *e)
{
    *out = moebius_default_session_options();
    out->n_batch = o->n_batch;
    out->sort_cutoff = o->sort_cutoff;
    out->car = o->car;
    if (o->car.threshold == 0 && (o->car.damp || o->car.n_warmup || o->car.n_protect || o->car.n_backfill))
        return err_set(e, ERR_USAGE, "--car-damp, --car-warmup, --car-protect and --backfill: expected --car X, too");
    out->kv = cli_kv_type(o->kv);
    return ERR_OK;
}

err_code cli_open_session(const struct model_options *o, int64_t n_ctx, struct opened *out, struct err *e)
{
    moebius_error error;
    moebius_session_options options;
    TRY(cli_session_options(o, &options, e));
    options.n_ctx = n_ctx;
    if (moebius_session_open(&out->session, out->engine, &options, &error) == MOEBIUS_OK)
        return ERR_OK;
    err_adopt(e, &error);
    run_plan_advise(o, out->engine, n_ctx, e);
    return e->code;
}

err_code cli_context_size(const struct model_options *o, const moebius_engine *engine, const char *what,
                          int64_t n_prompt, int64_t n_more, int64_t *n_ctx, struct err *e)
{
    int64_t limit = o->n_ctx ? o->n_ctx : moebius_n_ctx_train(engine);
    if (n_prompt > limit)
        return err_set(e, ERR_LIMIT, "%s has %lld tokens, the context %lld: shorten it%s", what, (long long)n_prompt,
                       (long long)limit,
                       o->n_ctx ? " or raise --ctx" : ", or go beyond what the model was trained for with --ctx");
    *n_ctx = limit;
    if (!o->n_ctx && n_more >= 0 && n_prompt + n_more < limit)
        *n_ctx = n_prompt + n_more;
    return ERR_OK;
}

int cli_count_gpus(const char *devices)
{
    for (int n = 0, at = 0, number;; n++) {
        int end = 0;
        if (sscanf(devices + at, "vulkan:%2d%n", &number, &end) != 1 || number != n)
            return 0;
        at += end;
        if (!devices[at])
            return n + 1;
        if (devices[at++] != ',')
            return 0;
    }
}

bool cli_has_stages(const moebius_engine *engine)
{
    moebius_device d;
    return moebius_engine_device(engine, 1, &d) && d.n_layer > 0;
}

void cli_close(struct opened *o)
{
    moebius_session_close(&o->session);
    moebius_engine_close(&o->engine);
}

/* ---- input --------------------------------------------------------------------------------------------------- */

bool cli_is_piped(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
}

const char *cli_file_or_piped(const char *file)
{
    return file || !cli_is_piped() ? file : "-";
}

err_code cli_read_file(const char *path, char **text, size_t *n, struct err *e)
{
    return cli_read_file_within(path, SIZE_MAX, text, n, e);
}

err_code cli_read_file_within(const char *path, size_t max_bytes, char **text, size_t *n, struct err *e)
{
    enum { LEAST_BYTES = 1 << 16 }; /* to read at a time, and a NUL */
    bool is_stdin = !strcmp(path, "-");
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    err_code code = ERR_OK;
    char *buf = NULL;
    size_t size = 0, capacity = 0;
    for (;;) {
        code = mem_grow(&buf, &capacity, size + LEAST_BYTES, 1, path, e);
        if (code != ERR_OK)
            break;
        size_t got = fread(buf + size, 1, capacity - size - 1, f);
        size += got;
        if (size > max_bytes)
            code = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes", path, max_bytes);
        if (got == 0 || code != ERR_OK)
            break;
    }
    if (code == ERR_OK && ferror(f))
        code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!is_stdin)
        fclose(f);
    if (code != ERR_OK) {
        mem_free(buf);
        return code;
    }
    buf[size] = '\0';
    *text = buf;
    *n = size;
    return ERR_OK;
}

/* CR LF to LF, in place; the new length. */
static size_t unify_line_ends(char *text, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] != '\r' || i + 1 == n || text[i + 1] != '\n')
            text[kept++] = text[i];
    return kept;
}

err_code cli_read_tokens(const char *path, const moebius_vocab *vocab, int32_t **ids, size_t *n, struct err *e)
{
    char *text = NULL;
    size_t n_text;
    moebius_error error;
    err_code code = cli_read_file(path, &text, &n_text, e);
    if (code == ERR_OK &&
        moebius_tokenize(vocab, text, unify_line_ends(text, n_text), true, false, ids, n, &error) != MOEBIUS_OK)
        code = err_adopt(e, &error);
    mem_free(text);
    return code;
}

err_code cli_bench_tokens(const char *path, const moebius_engine *engine, int32_t **ids, size_t *n, struct err *e)
{
    enum { N_RANDOM = 4096, SEED = 1 };
    if (path) {
        const struct prompt_options from = {.file = path};
        TRY(cli_prompt(&from, moebius_engine_vocab(engine), ids, n, e));
        return *n ? ERR_OK : err_set(e, ERR_USAGE, "%s: holds no tokens", path);
    }
    struct random r = random_seed(SEED);
    *n = N_RANDOM;
    *ids = mem_calloc(N_RANDOM, sizeof **ids);
    if (!*ids)
        return err_nomem(e, N_RANDOM * sizeof **ids, "tokens");
    for (int i = 0; i < N_RANDOM; i++)
        (*ids)[i] = (int32_t)(random_u32(&r) % (uint32_t)moebius_n_vocab(engine));
    return ERR_OK;
}

err_code cli_open_template(const char *file, const char *model, const moebius_vocab *vocab, moebius_template **out,
                           struct err *e)
{
    moebius_error error;
    char *text = NULL;
    const char *source = file ? NULL : moebius_vocab_template(vocab, NULL);
    size_t n = source ? strlen(source) : 0;
    if (!file && !source)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s has no chat template (tokenizer.chat_template): name one with --template FILE", model);
    if (file)
        TRY(cli_read_file(file, &text, &n, e));
    moebius_status status = moebius_template_open(out, file ? text : source, n, vocab, &error);
    mem_free(text);
    if (status == MOEBIUS_OK)
        return ERR_OK;
    err_adopt(e, &error);
    return err_prefix(e, "%s: the chat template", file ? file : model);
}

err_code cli_parse_vars(const struct option_list *list, struct cli_vars *out, struct err *e)
{
    for (int i = 0; i < list->n; i++) {
        const char *equals = strchr(list->items[i], '=');
        size_t n_name = equals ? (size_t)(equals - list->items[i]) : 0;
        if (n_name == 0 || n_name >= sizeof out->names[i])
            return err_set(e, ERR_USAGE, "--var %s: expected NAME=JSON", list->items[i]);
        json_error_t error;
        json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (!value)
            return err_set(e, ERR_USAGE, "--var %s: expected JSON behind the =, such as true, 5 or \"text\": %s",
                           list->items[i], error.text);
        json_decref(value);
        snprintf(out->names[i], sizeof out->names[i], "%.*s", (int)n_name, list->items[i]);
        out->vars[out->n++] = (moebius_template_var){out->names[i], equals + 1};
    }
    return ERR_OK;
}

#define BLANKS " \t\r\n"

err_code cli_parse_ids(const char *text, int32_t **ids, size_t *n, struct err *e)
{
    size_t capacity = strlen(text) / 2 + 1;
    int32_t *list = mem_calloc(capacity, sizeof *list);
    if (!list)
        return err_nomem(e, capacity * sizeof *list, "token ids");
    *n = 0;
    for (const char *p = text + strspn(text, BLANKS); *p; *n += 1) {
        char *end;
        p += *p == ',' && *n > 0;
        p += strspn(p, BLANKS);
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || (*end && !strchr("," BLANKS, *end))) {
            const int n_shown = (int)min_i64((int64_t)strcspn(p, "," BLANKS), 20);
            mem_free(list);
            return n_shown
                       ? err_set(e, ERR_USAGE, "tokens: \"%.*s\" is not a token id: expected numbers like 1,2,3",
                                 n_shown, p)
                       : err_set(e, ERR_USAGE, "tokens: number %zu is missing: expected numbers like 1,2,3", *n + 1);
        }
        list[*n] = (int32_t)id;
        p = end + strspn(end, BLANKS);
    }
    *ids = list;
    return ERR_OK;
}

/* Exactly one form of prompt, or none where a saved text goes on: with what is piped in place of one. */
static err_code choose_prompt(const struct prompt_options *p, struct prompt_options *out, struct err *e)
{
    *out = *p;
    if (!p->text && !p->tokens && !p->continues)
        out->file = cli_file_or_piped(p->file);
    int n_given = !!out->text + !!out->file + !!out->tokens;
    if (n_given != 1 && !(p->continues && n_given == 0))
        return err_set(e, ERR_USAGE, "expected one prompt: -p TEXT, -f FILE, --tokens 1,2,3 or a text that is piped");
    return ERR_OK;
}

err_code cli_check_prompt(const struct prompt_options *p, struct err *e)
{
    struct prompt_options chosen;
    int32_t *ids = NULL;
    size_t n;
    TRY(choose_prompt(p, &chosen, e));
    if (p->tokens)
        TRY(cli_parse_ids(p->tokens, &ids, &n, e));
    mem_free(ids);
    return ERR_OK;
}

/* The text of a prompt that was chosen. */
static err_code prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e)
{
    if (p->file)
        return cli_read_file(p->file, text, n, e);
    *n = p->text ? strlen(p->text) : 0;
    *text = mem_strdup(p->text ? p->text : "");
    return *text ? ERR_OK : err_nomem(e, *n, "the prompt");
}

err_code cli_prompt_text(const struct prompt_options *p, char **text, size_t *n, struct err *e)
{
    struct prompt_options chosen;
    TRY(choose_prompt(p, &chosen, e));
    return prompt_text(&chosen, text, n, e);
}

err_code cli_prompt(const struct prompt_options *p, const moebius_vocab *vocab, int32_t **ids, size_t *n, struct err *e)
{
    struct prompt_options chosen;
    TRY(choose_prompt(p, &chosen, e));
    if (p->tokens)
        return cli_parse_ids(p->tokens, ids, n, e);
    char *text = NULL;
    size_t n_text;
    TRY(prompt_text(&chosen, &text, &n_text, e));
    moebius_error error;
    moebius_status status = moebius_tokenize(vocab, text, n_text, !p->continues, false, ids, n, &error);
    mem_free(text);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

/* ---- interrupts ---------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted, ends_reads;

static void end_read_soon(int number)
{
    (void)number;
    if (ends_reads)
        alarm(1);
}

static void on_interrupt(int number)
{
    interrupted = 1;
    signal(number, SIG_DFL);
    end_read_soon(number);
}

void cli_catch_interrupt(void)
{
    interrupted = 0;
    signal(SIGINT, on_interrupt);
}

void cli_release_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
}

/* An interrupt that comes just before a read begins does not end it. The alarm behind it does, if need be the next. */
void cli_end_reads(bool on)
{
    const struct sigaction action = {.sa_handler = end_read_soon}; /* without SA_RESTART */
    ends_reads = on;
    if (on)
        sigaction(SIGALRM, &action, NULL);
    else
        alarm(0);
}

bool cli_interrupted(void)
{
    return interrupted;
}

/* ---- prompts ------------------------------------------------------------------------------------------------- */

struct prompt_progress {
    size_t n; /* tokens of the prompt */
    int64_t start_ns, shown_ns;
};

static bool is_cancel_wanted(void *user)
{
    return cli_interrupted();
}

/* From a second on, a line that stays where it is. */
static void show_prompt(void *user, double done)
{
    enum { FIRST_NS = 1000 * 1000 * 1000, EVERY_NS = 200 * 1000 * 1000 };
    struct prompt_progress *p = user;
    int64_t now = clock_ns();
    if (now - p->start_ns < FIRST_NS || now - p->shown_ns < EVERY_NS)
        return;
    double s = (double)(now - p->start_ns) / 1e9;
    say_progress("prompt of %zu tokens: %.0f%%%s%s%s", p->n, 100 * done, done > 0 ? ", " : "",
                 done > 0 ? units_duration(s / done - s).s : "", done > 0 ? " left" : "");
    p->shown_ns = now;
}

static void prompt_progress_begin(struct prompt_progress *p, const struct model_options *o, moebius_session *session,
                                  size_t n)
{
    *p = (struct prompt_progress){.n = n, .start_ns = clock_ns()};
    moebius_session_set_cancel(session, is_cancel_wanted, NULL);
    if (!o->quiet && isatty(STDERR_FILENO))
        moebius_session_set_progress(session, show_prompt, p);
}

static void prompt_progress_end(moebius_session *session)
{
    moebius_session_set_cancel(session, NULL, NULL);
    moebius_session_set_progress(session, NULL, NULL);
    say_progress_end();
}

err_code cli_eval_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                         struct err *e)
{
    moebius_error error;
    struct prompt_progress progress;
    prompt_progress_begin(&progress, o, session, n);
    moebius_status status = moebius_session_eval(session, ids, n, &error);
    prompt_progress_end(session);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

err_code cli_sync_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                         size_t *n_kept, struct err *e)
{
    moebius_error error;
    struct prompt_progress progress;
    prompt_progress_begin(&progress, o, session, n);
    moebius_status status = moebius_session_sync(session, ids, n, n_kept, &error);
    prompt_progress_end(session);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}
