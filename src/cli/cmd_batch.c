#define _POSIX_C_SOURCE 200809L
/* batch: answers many requests from a file, several at a time. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/batch_run.h"
#include "cli/commands.h"
#include "cli/input_text.h"
#include "cli/interrupt.h"
#include "cli/leave_receipt.h"
#include "cli/open_model.h"
#include "cli/run_plan.h"
#include "cli/stats.h"
#include "cli/template_options.h"
#include "cli/terminal.h"

enum { DEFAULT_TEXTS = 16, MAX_TEXTS = 1024, MAX_REQUEST_BYTES = 256 << 20 };

struct batch_command {
    struct model_options model;
    const char *input, *output, *template, *stats_json;
    int64_t n_texts;
    struct cli_vars vars;

    struct opened opened;
    moebius_template *tmpl;
    struct err template_error; /* why there is no template */
    struct batch batch;
    int64_t n_all;    /* number of requests; -1: not known */
    int64_t shown_ns; /* when progress was last shown */
};

/* ---- what is told -------------------------------------------------------------------------------------------- */

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

/* Tokens of answers a second. */
static double speed(const struct texts_stats *s)
{
    return per_second((int64_t)s->n_answer, s->prefill_ns + s->decode_ns);
}

/* "37 of 500", or "37" if the total is not known. */
static const char *done_text(const struct batch_command *c, char text[64])
{
    int n = snprintf(text, 64, "%lld", (long long)batch_queue_n_done(&c->batch.queue));
    if (c->n_all >= 0)
        snprintf(text + n, 64 - (size_t)n, " of %lld", (long long)c->n_all);
    return text;
}

/* Shows the progress on a terminal, twice a second, in a line that is overwritten each time. */
static void print_progress(void *user)
{
    enum { EVERY_NS = 500 * 1000 * 1000 };
    struct batch_command *c = user;
    char done[64];
    int64_t now = clock_ns();
    if (!terminal_knows_escapes(stderr) || now - c->shown_ns < EVERY_NS)
        return;
    c->shown_ns = now;
    const struct texts_stats stats = batch_stats(&c->batch);
    fprintf(stderr, "\r\033[K[%s requests done, %.2f tokens/s]\r", done_text(c, done), speed(&stats));
}

static void clear_progress(void)
{
    if (terminal_knows_escapes(stderr))
        fprintf(stderr, "\r\033[K");
}

static void print_summary(const struct batch_command *c)
{
    const struct batch_queue *q = &c->batch.queue;
    const struct texts_stats t = batch_stats(&c->batch);
    fprintf(stderr, "%lld answered", (long long)q->n_answered);
    if (q->n_failed)
        fprintf(stderr, ", %lld could not be (see \"error\")", (long long)q->n_failed);
    if (q->n_before)
        fprintf(stderr, ", %lld done before", (long long)q->n_before);
    fprintf(
        stderr,
        " | load %.2f s | prompts %lld tokens, %lld more shared | answers %lld tokens, %.2f tokens/s | %lld texts at "
        "once",
        (double)c->opened.load_ns / 1e9, (long long)t.n_prompt, (long long)t.n_cached, (long long)t.n_answer, speed(&t),
        (long long)t.n_most);
    if (t.n_guess)
        fprintf(stderr, ", %lld of %lld guesses right", (long long)t.n_guess_right, (long long)t.n_guess);
    if (t.n_suspended)
        fprintf(stderr, ", waited for memory %lld times", (long long)t.n_suspended);
    fprintf(stderr, " | %d threads\n", moebius_n_threads(c->opened.engine));
}

/* Says what is left to do after an interrupt. */
static err_code interrupted(const struct batch_command *c, struct err *e)
{
    char done[64];
    done_text(c, done);
    if (c->batch.queue.out.path)
        return err_set(e, ERR_CANCELLED, "interrupted: %s requests are done; run the same command again to continue",
                       done);
    return err_set(e, ERR_CANCELLED,
                   "interrupted: %s requests are done; only a run whose output is a file can be continued", done);
}

/* ---- preparing ----------------------------------------------------------------------------------------------- */

/* Counts the requests in a regular file and rewinds it; -1: it is no regular file. */
static err_code count_requests(struct line_reader *r, int64_t *n, struct err *e)
{
    struct stat st;
    struct line line;
    enum line_status status = LINE_READ;
    struct line_reader all;
    err_code code = ERR_OK;
    off_t start = lseek(r->fd, 0, SEEK_CUR);
    *n = -1;
    if (fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode) || start < 0)
        return ERR_OK;
    line_reader_from(&all, r->fd, r->name, r->max_bytes);
    for (*n = 0; code == ERR_OK && status == LINE_READ; *n += status == LINE_READ && !line_is_blank(&line))
        code = line_reader_next(&all, true, &line, &status, e);
    line_reader_close(&all);
    if (code == ERR_OK && lseek(r->fd, start, SEEK_SET) != start)
        code = err_set(e, ERR_IO, "%s: its beginning can't be read again", r->name);
    return code;
}

static err_code open_files(struct batch_command *c, struct err *e)
{
    struct batch_queue *q = &c->batch.queue;
    c->input = cli_file_or_piped(c->input);
    if (!c->input)
        return err_set(e, ERR_USAGE, "no requests: name a file of JSON lines with -i FILE (-: standard input)");
    if (!c->output)
        return err_set(e, ERR_USAGE, "no output: name a file with -o FILE (-: standard output)");
    TRY(line_reader_open(&q->in, c->input, MAX_REQUEST_BYTES, e));
    TRY(batch_output_open(&q->out, c->output, e));
    TRY(count_requests(&q->in, &c->n_all, e));
    if (q->out.n_done)
        fprintf(stderr, "%s: %lld requests are done; continuing with the rest\n", c->output, (long long)q->out.n_done);
    return output_file_check(c->stats_json, e);
}

/* Opens the template. Without one, only requests that need it fail; but one that was named must be there. */
static err_code open_template(struct batch_command *c, struct err *e)
{
    const moebius_vocab *vocab = moebius_engine_vocab(c->opened.engine);
    struct err *why = c->template ? e : &c->template_error;
    err_code code = cli_open_template(c->template, c->model.path, vocab, &c->tmpl, why);
    return c->template ? code : ERR_OK;
}

static err_code prepare(struct batch_command *c, struct err *e)
{
    struct batch *b = &c->batch;
    TRY(open_files(c, e));
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(open_template(c, e));
    const struct run_texts texts = {.n_texts_most = c->n_texts, .n_ctx = c->model.n_ctx};
    (void)run_plan_begin(&c->model, c->opened.engine, &texts);
    b->setup = (struct batch_setup){.model = &c->model,
                                    .engine = c->opened.engine,
                                    .tmpl = c->tmpl,
                                    .template_error = &c->template_error,
                                    .vars = &c->vars};
    TRY(grammar_cache_open(&b->setup.grammars, moebius_engine_vocab(c->opened.engine), e));
    b->n_texts = (size_t)c->n_texts;
    b->progress = print_progress;
    b->user = c;
    return ERR_OK;
}

/* ---- running ------------------------------------------------------------------------------------------------- */

static err_code write_stats(const struct batch_command *c, struct err *e)
{
    const struct texts_stats s = batch_stats(&c->batch);
    const struct run_times t = {.load_ns = c->opened.load_ns,
                                .prefill_ns = s.prefill_ns,
                                .decode_ns = s.decode_ns,
                                .n_prefill = (int64_t)s.n_prompt,
                                .n_decoded = (int64_t)s.n_answer};
    return c->stats_json ? stats_write_json(c->stats_json, c->opened.engine, &t, e) : ERR_OK;
}

static err_code answer_all(struct batch_command *c, struct err *e)
{
    struct batch *b = &c->batch;
    cli_catch_interrupt();
    err_code code = batch_run(b, e);
    clear_progress();
    print_summary(c);
    const struct texts_stats stats = batch_stats(b);
    cli_leave_texts_receipt(&c->model, c->opened.engine, "batch", &stats);
    if (code == ERR_CANCELLED)
        return interrupted(c, e);
    TRY(code);
    TRY(batch_output_finish(&b->queue.out, e));
    return write_stats(c, e);
}

static void close_all(struct batch_command *c)
{
    batch_close(&c->batch);
    grammar_cache_close(&c->batch.setup.grammars);
    moebius_template_close(&c->tmpl);
    cli_close(&c->opened);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct batch_command j = {.n_texts = DEFAULT_TEXTS};
    struct batch_request *r = &j.batch.queue.defaults;
    struct option_list vars = {0};
    *r = (struct batch_request){.max_tokens = 256, .sampling = cli_default_sampling()};
    const struct option options[] = {
        MODEL_OPTIONS(j.model),
        {"--input,-i", OPT_INPUT, &j.input, "FILE", "requests, one JSON object per line (-: standard input)", 0, 0, 0},
        {"--output,-o", OPT_OUTPUT, &j.output, "FILE", "answers; those already there are not computed again", 0, 0, 0},
        {"--texts", OPT_INT, &j.n_texts, "N", "slots: texts computed at once (16)", 1, MAX_TEXTS, 0},
        DRAFT_OPTIONS(j.model),
        {"--state", OPT_SIZE, &j.model.state_bytes, "SIZE",
         "memory for the KV caches and state of texts (half of the machine's)", 0, 0, 0, GROUP_MEMORY},
        {"--ctx,-c", OPT_INT, &j.model.n_ctx, "N", "context of each text (default: what it needs, up to the model's)",
         1, 1 << 30, 0},
        {"-n", OPT_INT, &r->max_tokens, "N", "longest answer (256), unless the request has max_tokens", -1, 1e9, 0},
        SAMPLING_OPTIONS(r->sampling),
        {"--stop", OPT_LIST, &r->stops, "TEXT", "stop before TEXT; repeatable", 0, 0, 0, GROUP_FORM},
        {"--ignore-eos", OPT_FLAG, &r->ignore_eos, "", "continue after a token that ends the text", 0, 0, 0,
         GROUP_FORM},
        {"--template", OPT_INPUT, &j.template, "FILE", "use this chat template instead of the model's", 0, 0, 0,
         GROUP_FORM},
        {"--var", OPT_LIST, &vars, "NAME=JSON", "set a template variable, such as enable_thinking=false", 0, 0, 0,
         GROUP_FORM},
        {"--stats-json", OPT_OUTPUT, &j.stats_json, "FILE", "write statistics to FILE at the end", 0, 0, 0,
         GROUP_OUTPUT},
        RECEIPT_OPTION(j.model),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = cli_check_sampling(&r->sampling, &e);
    if (code == ERR_OK)
        code = cli_parse_vars(&vars, &j.vars, &e);
    if (code == ERR_OK)
        code = prepare(&j, &e);
    if (code == ERR_OK)
        code = answer_all(&j, &e);
    close_all(&j);
    return cli_exit(c, code, &e);
}

const struct command cmd_batch = {
    .name = "batch",
    .usage = "-m FILE -i FILE -o FILE [OPTIONS]",
    .summary = "answer many requests from a file",
    .details =
        "Each line of the input is a JSON object with a prompt, messages or tokens. It may also set max_tokens, "
        "temperature, top_k, seed, stop and so on; the options below are the defaults. Each line of the output is an "
        "answer, the same that `moebius generate` would give. Run the same command again to continue an interrupted "
        "run.",
    .runs_model = true,
    .run = run,
};
