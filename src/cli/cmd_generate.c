#include <jansson.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/output_file.h"
#include "base/units_text.h"
#include "cli/answer_view.h"
#include "cli/chat_prompt.h"
#include "cli/commands.h"
#include "cli/eval_prompt.h"
#include "cli/grammar_options.h"
#include "cli/input_text.h"
#include "cli/interrupt.h"
#include "cli/leave_receipt.h"
#include "cli/open_model.h"
#include "cli/place_stats.h"
#include "cli/prompt_options.h"
#include "cli/run_plan.h"
#include "cli/sampling_options.h"
#include "cli/stats.h"
#include "cli/template_options.h"
#include "cli/terminal.h"
#include "texts/answer.h"
#include "texts/look_ahead.h"

struct generate {
    struct model_options model;
    struct prompt_options prompt;
    struct sampling_options sampling;
    struct grammar_options grammar_options;
    struct option_list stops;
    const char *template, *system; /* these three: options of --chat; NULL: the model's template, no system message */
    struct cli_vars vars;
    int64_t n;
    bool ids_only, ignore_eos, echo, chat, raw;
    const char *load_path, *save_path, *stats, *stats_json, *color;

    int64_t shown_ns; /* --stats: when statistics were last shown */
    moebius_counters shown;
    struct layer_stats layers; /* --stats=layer */
    struct opened opened;
    moebius_sampler *sampler;
    moebius_grammar *grammar; /* these two: NULL without a grammar */
    moebius_matcher *matcher;
    struct text_out out;
    struct answer answer;
    struct answer_view view;
    struct look_ahead ahead;
    moebius_template *tmpl; /* these two: --chat */
    struct chat_prompt rendered;
    int32_t *ids;
    size_t n_ids;
    int64_t n_loaded; /* tokens of the loaded session, which come before ids */
    int64_t n_said;   /* tokens of the text so far */
};

/* With -n -1 the context is as long as the plan chooses, with room for some answer. */
static int64_t plan_context(const struct generate *g, int64_t n_ctx)
{
    enum { SOME_ANSWER = 512 };
    bool is_open = !g->model.n_ctx && g->n < 0;
    const struct run_texts texts = {.n_ctx = is_open ? 0 : n_ctx, .n_ctx_most = n_ctx};
    int64_t chosen = run_plan_begin(&g->model, g->opened.engine, &texts);
    return min_i64(n_ctx, max_i64(chosen, g->n_loaded + (int64_t)g->n_ids + SOME_ANSWER));
}

/* Opens the session: the saved one, or a new one. */
static err_code open_session(struct generate *g, struct err *e)
{
    int64_t n_ctx = 0;
    moebius_error error;
    moebius_part saved = {0};
    if (g->load_path && moebius_part_read(g->load_path, &saved, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    g->n_loaded = saved.n_tok;
    TRY(cli_context_size(&g->model, g->opened.engine, g->n_loaded ? "the saved session with the prompt" : "the prompt",
                         g->n_loaded + (int64_t)g->n_ids, g->n, &n_ctx, e));
    n_ctx = plan_context(g, n_ctx);
    TRY(cli_open_session(&g->model, n_ctx, &g->opened, e));
    if (g->load_path && moebius_session_load(g->opened.session, g->load_path, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    g->n_loaded = moebius_session_pos(g->opened.session);
    if (g->n_ids > 0 || moebius_session_logits(g->opened.session))
        return ERR_OK;
    if (g->load_path)
        return err_set(e, ERR_USAGE, "%s has no logits to continue from: append a prompt", g->load_path);
    return err_set(e, ERR_USAGE, "the prompt is empty and this model has no token that begins a text");
}

/* The prompt as a user's message, behind a system message if there is one; NULL: a text of them is not UTF-8. */
static json_t *make_messages(const char *system, const char *prompt, size_t n)
{
    return system ? json_pack("[{s:s, s:s}, {s:s, s:s%}]", "role", "system", "content", system, "role", "user",
                              "content", prompt, n)
                  : json_pack("[{s:s, s:s%}]", "role", "user", "content", prompt, n);
}

/* Applies the template to the messages. */
static err_code chat_prompt(struct generate *g, const moebius_vocab *vocab, struct err *e)
{
    char *owned = NULL;
    size_t n;
    TRY(cli_prompt_text(&g->prompt, &owned, &n, e));
    json_t *messages = make_messages(g->system, owned, n);
    mem_free(owned);
    if (!messages)
        return err_set(e, ERR_FORMAT, "the prompt%s is not UTF-8", g->system ? " or the system message" : "");
    err_code code = cli_open_template(g->template, g->model.path, vocab, &g->tmpl, e);
    if (code == ERR_OK)
        code = chat_prompt_render(&g->rendered, g->tmpl, vocab, messages, g->vars.vars, g->vars.n, e);
    json_decref(messages);
    g->ids = g->rendered.ids;
    g->n_ids = g->rendered.n;
    g->rendered.ids = NULL; /* the command owns them now */
    return code;
}

static err_code open_answer(struct generate *g, const moebius_vocab *vocab, struct err *e)
{
    size_t n = 0;
    const char *prompt = g->tmpl ? moebius_prompt_text(g->rendered.rendered, &n) : NULL;
    const struct answer_params params = {.vocab = vocab,
                                         .max_piece = answer_longest_piece(vocab),
                                         .ignore_eos = g->ignore_eos,
                                         .stops = g->stops.items,
                                         .n_stops = (size_t)g->stops.n,
                                         .tmpl = g->tmpl,
                                         .prompt = answer_prompt_end(prompt, n),
                                         .fn = g->ids_only ? NULL : answer_view_write,
                                         .user = &g->view};
    g->view = (struct answer_view){.out = &g->out, .styled = terminal_has_style(stdout, g->color)};
    return answer_open(&g->answer, &params, e);
}

/* Checks the options before the model is loaded, which may take minutes. */
static err_code check(struct generate *g, struct err *e)
{
    g->prompt.continues = g->load_path != NULL;
    TRY(cli_check_model(&g->model, e));
    if (g->chat && (g->prompt.tokens || (!g->prompt.text && !g->prompt.file && !cli_is_piped())))
        return err_set(e, ERR_USAGE, "--chat takes a text, with -p, -f or a pipe, and no --tokens");
    if (!g->chat && (g->template || g->system || g->vars.n))
        return err_set(e, ERR_USAGE, "%s: expected --chat, too",
                       g->template ? "--template"
                       : g->system ? "--system"
                                   : "--var");
    TRY(cli_check_prompt(&g->prompt, e));
    TRY(cli_check_sampling(&g->sampling, e));
    return cli_check_grammar(&g->grammar_options, e);
}

static err_code prepare(struct generate *g, struct err *e)
{
    text_out_open(&g->out, stdout, g->raw);
    TRY(output_file_check(g->save_path, e));
    TRY(output_file_check(g->stats_json, e));
    TRY(cli_open_engine(&g->model, &g->opened, e));
    const moebius_vocab *vocab = moebius_engine_vocab(g->opened.engine);
    TRY(g->chat ? chat_prompt(g, vocab, e) : cli_prompt(&g->prompt, vocab, &g->ids, &g->n_ids, e));
    if (g->stats && *g->stats)
        TRY(layer_stats_open(&g->layers, g->opened.engine, e));
    TRY(open_session(g, e));
    TRY(cli_open_sampler(&g->sampling, g->opened.engine, &g->sampler, e));
    TRY(cli_open_grammar(&g->grammar_options, vocab, &g->grammar, e));
    return open_answer(g, vocab, e);
}

static void echo_prompt(struct generate *g)
{
    const moebius_vocab *vocab = moebius_engine_vocab(g->opened.engine);
    const int32_t *loaded = moebius_session_tokens(g->opened.session);
    for (size_t i = 0, n_loaded = (size_t)g->n_loaded; i < n_loaded + g->n_ids; i++) {
        size_t n;
        const char *piece = moebius_token_piece(vocab, i < n_loaded ? loaded[i] : g->ids[i - n_loaded], false, &n);
        text_out_write(&g->out, piece, n);
    }
    fflush(stdout);
}

static err_code eval_prompt(struct generate *g, struct run_times *t, struct err *e)
{
    int64_t start = clock_ns();
    t->n_chunk = moebius_session_batch(g->opened.session, g->n_ids);
    err_code code = cli_eval_prompt(&g->model, g->opened.session, g->ids, g->n_ids, e);
    int64_t n_done = moebius_session_pos(g->opened.session) - g->n_loaded;
    t->prefill_ns = clock_ns() - start;
    t->n_prefill = n_done > 0 ? n_done : 0;
    if (code == ERR_CANCELLED)
        err_set(e, code, "interrupted after %lld of the prompt's %zu tokens", (long long)t->n_prefill, g->n_ids);
    return code;
}

static err_code eval_token(struct generate *g, int32_t id, struct run_times *t, struct err *e)
{
    int64_t took_ns;
    TRY(look_ahead_eval(&g->ahead, id, &took_ns, e));
    t->decode_ns += took_ns;
    t->n_decoded++;
    return ERR_OK;
}

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

/* --stats=layer: prints what each layer did for the prompt, or for a token. */
static void print_layers(struct generate *g, const char *what, int64_t n)
{
    char line[64];
    snprintf(line, sizeof line, "%s %lld", what, (long long)n);
    layer_stats_print(&g->layers, line, stderr);
}

/* --stats: prints statistics twice a second, on a terminal in a line that is overwritten each time. */
static void print_live(struct generate *g, const struct run_times *t)
{
    enum { EVERY_NS = 500 * 1000 * 1000 };
    int64_t now = clock_ns();
    if (g->layers.before)
        print_layers(g, "token", t->n_decoded);
    if (!g->stats || *g->stats || now - g->shown_ns < EVERY_NS)
        return;
    const char *clear = terminal_knows_escapes(stderr) ? "\r\033[K" : "";
    fprintf(stderr, "%s[%lld tokens, %.2f tokens/s | ", clear, (long long)t->n_decoded,
            per_second(t->n_decoded, t->decode_ns));
    stats_print(g->opened.engine, &g->shown);
    fprintf(stderr, "]%s", *clear ? clear : "\n");
    g->shown_ns = now;
    g->shown = moebius_engine_counters(g->opened.engine);
}

/* Brings the session to the end of the text, without guessed tokens, with the logits after it. */
static err_code end_session(struct generate *g, struct err *e)
{
    moebius_error error;
    look_ahead_end(&g->ahead);
    if (g->save_path && g->model.n_draft &&
        moebius_session_sync(g->opened.session, g->ahead.ids, g->ahead.n_ids, NULL, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

static err_code generate(struct generate *g, struct run_times *t, struct err *e)
{
    if (g->echo && !g->ids_only)
        echo_prompt(g);
    for (int64_t i = 0; i < g->n_loaded; i++)
        moebius_sampler_accept(g->sampler, moebius_session_tokens(g->opened.session)[i]);
    for (size_t i = 0; i < g->n_ids; i++)
        moebius_sampler_accept(g->sampler, g->ids[i]);
    TRY(cli_begin_grammar(g->grammar, g->sampler, &g->matcher, e)); /* the grammar does not apply to the prompt */
    if (g->n_ids > 0)
        TRY(eval_prompt(g, t, e));
    if (g->n_ids > 0 && g->layers.before)
        print_layers(g, "prompt of", t->n_prefill);
    bool is_full = false;
    g->ahead.n_draft = g->model.n_draft;
    TRY(look_ahead_begin(&g->ahead, g->opened.engine, g->opened.session, e));
    for (int64_t i = 0; i != g->n && !cli_interrupted(); i++) {
        int32_t id = moebius_sampler_pick(g->sampler, look_ahead_logits(&g->ahead));
        if (id < 0) {
            TRY(cli_grammar_end(g->matcher, e));
            break;
        }
        moebius_sampler_accept(g->sampler, id);
        g->n_said++;
        bool end = false;
        if (g->ids_only)
            printf("%s%d", i ? " " : "", (int)id);
        TRY(answer_feed(&g->answer, id, &end, e));
        bool is_last = end || i + 1 == g->n;
        if (is_last && !g->save_path)
            break;
        is_full = (int64_t)look_ahead_pos(&g->ahead) == moebius_session_n_ctx(g->opened.session);
        if (is_full)
            break;
        TRY(eval_token(g, id, t, e)); /* the last, too, so that a saved session goes on after it */
        print_live(g, t);
        if (is_last)
            break;
    }
    TRY(end_session(g, e));
    answer_finish(&g->answer);
    if (g->tmpl && !g->ids_only)
        answer_view_write(&g->view, MOEBIUS_REPLY_CONTENT, "", 0);
    text_out_end(&g->out);
    printf("\n");
    fflush(stdout);
    if (is_full)
        fprintf(stderr, "[the context of %lld tokens is full]\n", (long long)moebius_session_n_ctx(g->opened.session));
    moebius_error error;
    if (g->save_path && moebius_session_save(g->opened.session, g->save_path, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

/* Prints after a text how fast it was, and the seed that gives the same text again. */
static void print_summary(const struct generate *g, const struct run_times *t)
{
    if (g->model.quiet)
        return;
    if (g->n_ids)
        fprintf(stderr, "prompt %lld token%s, %.2f tokens/s", (long long)t->n_prefill, t->n_prefill == 1 ? "" : "s",
                per_second(t->n_prefill, t->prefill_ns));
    if (g->n_said)
        fprintf(stderr, "%stext %lld token%s", g->n_ids ? " | " : "", (long long)g->n_said, g->n_said == 1 ? "" : "s");
    if (t->n_decoded)
        fprintf(stderr, ", %.2f tokens/s", per_second(t->n_decoded, t->decode_ns));
    if (g->ahead.n_guess)
        fprintf(stderr, ", %" PRIu64 " of %" PRIu64 " guesses right", g->ahead.n_right, g->ahead.n_guess);
    if (g->sampling.sampler.temperature > 0)
        fprintf(stderr, "%sseed %lld", g->n_ids || g->n_said ? " | " : "", (long long)g->sampling.seed);
    fprintf(stderr, "\n");
    if (!g->stats) /* otherwise the statistics have it */
        stats_print_car(g->opened.engine, stderr);
}

/* --stats: prints figures of loading, memory and reads. */
static void print_statistics(const struct generate *g, const struct run_times *t)
{
    const moebius_engine *engine = g->opened.engine;
    moebius_counters c = moebius_engine_counters(engine);
    const char *reader = moebius_expert_reader(engine);
    fprintf(stderr, "load %.2f s | %lld tokens at once | %d threads", (double)t->load_ns / 1e9, (long long)t->n_chunk,
            moebius_n_threads(engine));
    if (c.n_direct + c.n_sorted)
        fprintf(stderr, " | MoE layers: %llu direct, %llu sorted", (unsigned long long)c.n_direct,
                (unsigned long long)c.n_sorted);
    fprintf(stderr, " | state %s\n", units_size((uint64_t)moebius_session_state_bytes(g->opened.session)).s);
    stats_print(engine, NULL);
    fprintf(stderr, " | peak %s | %s\n", units_size((uint64_t)stats_peak_bytes()).s,
            *reader ? reader : "all in memory");
    place_stats_print(engine, stderr);
}

/* With a prepared store: prints how much was read from each drive. */
static void print_sources(const struct generate *g)
{
    moebius_source p;
    for (int i = 0; g->model.store && moebius_engine_source(g->opened.engine, i, &p); i++) {
        fprintf(stderr, "%s: %llu reads, %s", p.path, (unsigned long long)p.n_reads, units_size(p.n_bytes).s);
        if (p.bytes_per_s > 0)
            fprintf(stderr, ", %.0f MB/s", p.bytes_per_s / 1e6);
        fprintf(stderr, "%s\n", p.is_gone ? ", given up" : "");
    }
}

static void leave_receipt(const struct generate *g, const struct run_times *t)
{
    const struct run_figures f = {
        .method = "generate",
        .n_prefill = t->n_prefill,
        .prefill_ns = t->prefill_ns,
        .n_decoded = g->ahead.n_guess ? 0 : t->n_decoded, /* with guesses the speed depends on the text */
        .decode_ns = t->decode_ns,
        .n_texts = 1,
        .n_ctx = g->n_loaded + t->n_prefill + t->n_decoded / 2,
        .n_prompt = t->n_prefill,
        .prompt_from = g->n_loaded};
    cli_leave_receipt(&g->model, g->opened.engine, &f);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct generate g = {.sampling = cli_default_sampling(), .n = 256};
    struct option_list vars = {0};
    const struct option options[] = {
        MODEL_OPTIONS(g.model),
        CAR_OPTIONS(g.model),
        DRAFT_OPTIONS(g.model),
        PROMPT_OPTIONS(g.prompt),
        {"-n", OPT_INT, &g.n, "N", "tokens to generate (256); -1: until the text or the context ends", -1, 1e9, 0},
        {"--ctx,-c", OPT_INT, &g.model.n_ctx, "N",
         "context in tokens (default: what is needed; with -n -1 the plan chooses)", 1, 1 << 30, 0},
        SAMPLING_OPTIONS(g.sampling),
        GRAMMAR_OPTIONS(g.grammar_options),
        {"--stop", OPT_LIST, &g.stops, "TEXT", "stop before TEXT; repeatable", 0, 0, 0, GROUP_FORM},
        {"--ignore-eos", OPT_FLAG, &g.ignore_eos, "", "continue after a token that ends the text", 0, 0, 0, GROUP_FORM},
        {"--chat", OPT_FLAG, &g.chat, "", "treat the prompt as a chat message and apply the chat template", 0, 0, 0},
        {"--system", OPT_STRING, &g.system, "TEXT", "with --chat: the system message", 0, 0, 0},
        {"--template", OPT_INPUT, &g.template, "FILE", "with --chat: use this chat template instead of the model's", 0,
         0, 0, GROUP_FORM},
        {"--var", OPT_LIST, &vars, "NAME=JSON", "with --chat: set a template variable, such as enable_thinking=false",
         0, 0, 0, GROUP_FORM},
        {"--echo", OPT_FLAG, &g.echo, "", "print the prompt first", 0, 0, 0, GROUP_OUTPUT},
        {"--save-state", OPT_OUTPUT, &g.save_path, "FILE", "save the session at the end of the text", 0, 0, 0,
         GROUP_OUTPUT},
        {"--load-state", OPT_INPUT_OLD, &g.load_path, "FILE", "continue a saved session; a prompt is appended to it", 0,
         0, 0, GROUP_OUTPUT},
        RAW_OPTION(g.raw),
        COLOR_OPTION(g.color),
        {"--ids", OPT_FLAG, &g.ids_only, "", "print the token ids instead of text, on one line", 0, 0, 0, GROUP_OUTPUT},
        {"--quiet,-q", OPT_FLAG, &g.model.quiet, "", "show neither statistics nor progress", 0, 0, 0, GROUP_OUTPUT},
        {"--stats", OPT_DETAIL, &g.stats, "[=layer]", "show memory and reads while running (=layer: by layer)", 0, 0,
         "layer", GROUP_OUTPUT},
        {"--stats-json", OPT_OUTPUT, &g.stats_json, "FILE", "write statistics to FILE at the end", 0, 0, 0,
         GROUP_OUTPUT},
        RECEIPT_OPTION(g.model),
    };
    struct err e = {0};
    struct run_times t = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = cli_parse_vars(&vars, &g.vars, &e);
    if (code == ERR_OK)
        code = check(&g, &e);
    if (code == ERR_OK)
        code = prepare(&g, &e);
    if (code == ERR_OK) {
        cli_catch_interrupt();
        t.load_ns = g.opened.load_ns;
        code = generate(&g, &t, &e);
        if (code == ERR_OK || code == ERR_CANCELLED) {
            print_summary(&g, &t);
            if (g.stats) {
                print_statistics(&g, &t);
                print_sources(&g);
            }
            leave_receipt(&g, &t);
        }
        if (code == ERR_OK && g.stats_json)
            code = stats_write_json(g.stats_json, g.opened.engine, &t, &e);
    }
    answer_close(&g.answer);
    look_ahead_close(&g.ahead);
    chat_prompt_close(&g.rendered);
    moebius_template_close(&g.tmpl);
    moebius_sampler_close(&g.sampler);
    moebius_matcher_close(&g.matcher);
    moebius_grammar_close(&g.grammar);
    cli_close_grammar(&g.grammar_options);
    layer_stats_close(&g.layers);
    cli_close(&g.opened);
    mem_free(g.ids);
    return cli_exit(c, code, &e);
}

const struct command cmd_generate = {
    .name = "generate",
    .usage = "-m FILE (-p TEXT | -f FILE | --tokens 1,2,3 | --load-state FILE) [OPTIONS]",
    .summary = "continue a text",
    .details =
        "Streams the text to standard output; its speed and seed follow on standard error. Without a prompt option, "
        "the prompt is read from standard input, if that is a file or a pipe. Ctrl-C ends the text early.",
    .hint = "a prompt is given with -p, and in quotes",
    .runs_model = true,
    .run = run,
};
