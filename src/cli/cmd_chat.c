/* chat: a conversation in the terminal, or line by line through pipes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/printable.h"
#include "base/units_text.h"
#include "cli/answer_view.h"
#include "cli/chat_history.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/grammar_options.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/open_model.h"
#include "cli/output_check.h"
#include "cli/run_plan.h"
#include "cli/sampling_options.h"
#include "cli/stats.h"
#include "cli/template_options.h"
#include "cli/terminal.h"
#include "cli/terminal_text.h"

/* The mark before and after a message of several lines. */
#define BLOCK_MARK "\"\"\""

/* The template for a model without one: the text is continued, as by `generate`. */
static const char plain_template[] = "{%- for m in messages %}{{ m.content }}\n{% endfor -%}";

struct chat {
    struct model_options model;
    struct sampling_options sampling;
    struct grammar_options grammar_options;
    struct cli_vars vars;
    const char *template, *system, *color;
    bool raw, plain, no_history;
    int64_t n;

    struct opened opened;
    moebius_template *tmpl;
    moebius_sampler *sampler;
    moebius_grammar *grammar; /* NULL: none */
    struct conversation talk;
    struct line_editor *editor;
    struct text_out out;
    struct answer_view view;
    struct terminal_text lines; /* lays out the answer on a terminal */
    struct chat_history history;
    char *prefill; /* text to put into the next line for editing; owned; NULL: none */
    bool interactive, can_prefill;
    bool is_styled;   /* markdown in answers is shown as style, with a status line below */
    int64_t shown_ns; /* these three: when the status was last shown, and the counts at that time */
    moebius_counters shown;
    struct conversation_stats shown_stats;
};

static void note(const struct chat *c, const char *text)
{
    fprintf(stderr, terminal_has_style(stderr, c->color) ? "\033[2m[%s]\033[0m\n" : "[%s]\n", text);
}

static void note_format(const struct chat *c, const char *format, ...) PRINTF_LIKE(2, 3);
static void note_format(const struct chat *c, const char *format, ...)
{
    char text[PRINTABLE_FORMAT_BYTES];
    va_list args;
    va_start(args, format);
    (void)printable_format(text, sizeof text, format, args);
    va_end(args);
    note(c, text);
}

/* ---- commands ------------------------------------------------------------------------------------------------ */

static void print_help(void)
{
    puts("/retry           replace the last answer by another one\n"
         "/edit [TEXT]     replace the last message, or edit it\n"
         "/reset, /clear   forget the conversation, but not the system message\n"
         "/system [TEXT]   show or set the system message (/system - removes it)\n"
         "/save FILE       write the conversation as JSON\n"
         "/load FILE       continue a saved conversation\n"
         "/stats           tokens and speed so far\n"
         "/help, /?        this\n"
         "/exit, /quit     end; Ctrl-D does, too\n"
         "Ctrl-C stops an answer. A line that ends with \\ continues on the next one. \"\"\"\n"
         "begins and ends a message of several lines, and pasted text is one message.\n"
         "Begin with // to send a message that begins with a slash.");
}

static double per_second(int64_t n, int64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

static void print_stats(const struct chat *c)
{
    const struct conversation_stats *s = &c->talk.stats;
    printf("context: %lld of %lld tokens\n"
           "prompts: %lld tokens evaluated, %.2f tokens/s; %lld found in the cache\n"
           "answers: %lld; %lld tokens, %.2f tokens/s\n",
           (long long)moebius_session_pos(c->opened.session), (long long)moebius_session_n_ctx(c->opened.session),
           (long long)s->n_prompt, per_second(s->n_prompt, s->prefill_ns), (long long)s->n_reused,
           (long long)s->n_answer, (long long)s->n_said, per_second(s->n_decoded, s->decode_ns));
    if (c->model.n_draft)
        printf("guesses: %lld, %lld right\n", (long long)c->talk.ahead.n_guess, (long long)c->talk.ahead.n_right);
    if (c->sampling.sampler.temperature > 0)
        printf("seed: %lld\n", (long long)c->sampling.seed);
    stats_print_car(c->opened.engine, stdout);
}

/* Prints a text that is not part of an answer. */
static void show_text(struct chat *c, const char *text)
{
    if (c->out.terminal)
        terminal_text_open(&c->lines, stdout, terminal_text_columns(stdout));
    text_out_write(&c->out, text, strlen(text));
    text_out_end(&c->out);
    if (c->out.terminal)
        terminal_text_end(&c->lines);
    putchar('\n');
}

/* /system TEXT: sets the system message; "": shows it; "-": removes it. */
static err_code set_system(struct chat *c, const char *text, struct err *e)
{
    const char *now = conversation_system(&c->talk);
    if (*text) {
        bool removed = !strcmp(text, "-");
        TRY(conversation_set_system(&c->talk, removed ? "" : text, e));
        note(c, removed ? "there is no system message any more" : "the system message is set");
        return ERR_OK;
    }
    show_text(c, now ? now : "there is no system message: /system TEXT sets one");
    return ERR_OK;
}

static err_code save_or_load(struct chat *c, bool save, const char *path, struct err *e)
{
    if (!*path)
        return err_set(e, ERR_USAGE, save ? "/save needs a file's name" : "/load needs a file's name");
    if (save && cli_is_of_model(c->model.path, path))
        return err_set(e, ERR_USAGE, "/save %s: that is the model; expected another file to write", path);
    bool is_replaced = save && access(path, F_OK) == 0;
    err_code code = save ? conversation_save(&c->talk, path, e) : conversation_load(&c->talk, path, e);
    const struct err why = *e;
    if (code == ERR_OK)
        note_format(c, "%zu messages %s %s%s", json_array_size(c->talk.messages), save ? "written to" : "read from",
                    path, is_replaced ? " (replaced)" : "");
    if (code == ERR_IO && !c->model.no_sandbox && strstr(why.text, strerror(EACCES)))
        err_set(e, code,
                "%s (/save and /load reach files below the folder that chat was started in; with --no-sandbox, any)",
                why.text);
    return code;
}

static err_code forget(struct chat *c)
{
    conversation_reset(&c->talk);
    note(c, conversation_system(&c->talk) ? "the conversation is cleared; the system message stays"
                                          : "the conversation is cleared");
    return ERR_OK;
}

/* "/retry" sends the last message again, "/edit TEXT" another one in its place; "/edit" puts the last one into the line
 * to be edited. *say: the message to send now, owned by the caller; NULL: none. */
static err_code say_again(struct chat *c, bool edit, const char *text, char **say, struct err *e)
{
    char *last = NULL;
    if (edit && !*text && !c->can_prefill)
        return err_set(e, ERR_USAGE, "/edit needs a text here, to replace the last message");
    TRY(conversation_take_back(&c->talk, &last, e));
    if (!last)
        return err_set(e, ERR_USAGE, "there is no message yet");
    if (edit && !*text) {
        c->prefill = last;
        return ERR_OK;
    }
    *say = edit ? mem_strdup(text) : last;
    if (edit)
        mem_free(last);
    return *say ? ERR_OK : err_nomem(e, strlen(text), "a message");
}

/* Runs a line that begins with a slash. *end: it was /exit; *say: as above. */
static err_code run_command(struct chat *c, const char *line, bool *end, char **say, struct err *e)
{
    enum { RESET, CLEAR, SYSTEM, SAVE, LOAD, RETRY, EDIT, IMAGE, HELP, QUESTION, STATS, EXIT, QUIT, BYE, N_NAME };
    static const char *const names[N_NAME] = {"/reset", "/clear", "/system", "/save",  "/load", "/retry", "/edit",
                                              "/image", "/help",  "/?",      "/stats", "/exit", "/quit",  "/bye"};
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    int which = 0;
    while (which < N_NAME && (strlen(names[which]) != n || strncmp(line, names[which], n) != 0))
        which++;
    switch (which) {
    case RESET:
    case CLEAR: return forget(c);
    case SYSTEM: return set_system(c, rest, e);
    case SAVE:
    case LOAD: return save_or_load(c, which == SAVE, rest, e);
    case RETRY:
    case EDIT: return say_again(c, which == EDIT, rest, say, e);
    case IMAGE: return err_set(e, ERR_UNSUPPORTED, "/image: models are run with text alone here");
    case HELP:
    case QUESTION: print_help(); return ERR_OK;
    case STATS: print_stats(c); return ERR_OK;
    case EXIT:
    case QUIT:
    case BYE: *end = true; return ERR_OK;
    default: return err_set(e, ERR_USAGE, "there is no command %.*s: /help lists them", (int)n, line);
    }
}

/* ---- turns --------------------------------------------------------------------------------------------------- */

/* Shows speed and hit rate in the line below the answer, while experts are read. */
static void show_status(struct chat *c)
{
    enum { EVERY_NS = 500 * 1000 * 1000 };
    char line[128];
    int64_t now = clock_ns();
    moebius_counters n = moebius_engine_counters(c->opened.engine);
    uint64_t hit = n.n_expert_hit - c->shown.n_expert_hit, miss = n.n_expert_miss - c->shown.n_expert_miss;
    const struct conversation_stats *s = &c->talk.stats;
    int64_t n_decoded = s->n_decoded - c->shown_stats.n_decoded, ns = s->decode_ns - c->shown_stats.decode_ns;
    if (now - c->shown_ns < EVERY_NS || n_decoded == 0 || n.expert_bytes >= n.expert_all_bytes)
        return;
    snprintf(line, sizeof line, "%.2f tokens/s | %.1f%% of experts found in memory | %s read",
             per_second(n_decoded, ns), hit + miss ? 100 * (double)hit / (double)(hit + miss) : 100.0,
             units_size(n.n_expert_read_bytes - c->shown.n_expert_read_bytes).s);
    terminal_text_status(&c->lines, line);
    fflush(stdout);
    c->shown_ns = now;
    c->shown = n;
    c->shown_stats = *s;
}

static void show_answer(void *user, moebius_reply_part part, const char *text, size_t n)
{
    struct chat *c = user;
    answer_view_write(&c->view, part, text, n);
    if (c->is_styled)
        show_status(c);
}

static void begin_answer(struct chat *c)
{
    if (c->out.terminal) {
        terminal_text_open(&c->lines, stdout, terminal_text_columns(stdout));
        c->lines.has_markdown = c->is_styled;
    }
    c->shown = moebius_engine_counters(c->opened.engine);
    c->shown_stats = c->talk.stats;
    c->shown_ns = clock_ns();
}

/* Prints how long an answer was and how fast, on a terminal. */
static void note_speed(const struct chat *c, const struct conversation_stats *before)
{
    int64_t n = c->talk.stats.n_decoded - before->n_decoded, ns = c->talk.stats.decode_ns - before->decode_ns;
    if (c->interactive && !c->model.quiet && n > 0)
        note_format(c, "%lld tokens, %.2f tokens/s", (long long)(c->talk.stats.n_said - before->n_said),
                    per_second(n, ns));
}

static err_code say(struct chat *c, const char *text, struct err *e)
{
    struct conversation_turn turn;
    const struct conversation_stats before = c->talk.stats;
    if (!c->interactive) /* on a terminal an interrupt since the prompt ends the answer */
        cli_catch_interrupt();
    begin_answer(c);
    err_code code = conversation_say(&c->talk, text, show_answer, c, &turn, e);
    if (c->out.terminal)
        terminal_text_status(&c->lines, NULL);
    answer_view_end(&c->view);
    if (turn.n_dropped)
        note_format(c, "the context was full: the %zu oldest messages are forgotten", turn.n_dropped);
    if (turn.interrupted)
        note(c, "interrupted");
    else if (turn.out_of_tokens)
        note(c, "stopped at the limit of -n");
    note_speed(c, &before);
    if (ferror(stdout))
        return err_set(e, ERR_IO, "standard output: the answer could not be written");
    if (turn.interrupted && !c->interactive) /* without a terminal an interrupt ends the program */
        return err_set(e, ERR_CANCELLED, "interrupted");
    return code;
}

/* The part of a line that belongs to the message, and whether the message continues in the next line. */
struct message_part {
    const char *text;
    size_t n;
    bool more;
};

static bool ends_block(const char *line, size_t n)
{
    return n >= 3 && !strncmp(line + n - 3, BLOCK_MARK, 3);
}

/* Parses a line. *in_block: whether it is between two """. */
static struct message_part part_of(const char *line, bool is_first, bool *in_block)
{
    struct message_part p = {.text = line, .n = strlen(line)};
    bool begins = is_first && !strncmp(line, BLOCK_MARK, 3);
    if (begins) {
        p.text += 3;
        p.n -= 3;
    }
    if (begins || *in_block) {
        p.more = *in_block = !ends_block(p.text, p.n);
        p.n -= p.more ? 0 : 3;
        return p;
    }
    p.more = p.n > 0 && line[p.n - 1] == '\\';
    p.n -= p.more;
    return p;
}

/* Reads a whole message: a line, several lines that end with a backslash, or the lines between two """. Owned by the
 * caller. */
static enum line_event read_message(struct chat *c, char **message, struct err *e)
{
    const char *line;
    size_t n = 0;
    bool in_block = false;
    struct message_part p = {.more = true};
    *message = NULL;
    while (p.more) {
        enum line_event event = line_editor_read(c->editor, *message ? "... " : "> ", &line);
        bool is_cut = event == LINE_END && *message && !c->interactive;
        if (is_cut) { /* the input ends within the message */
            n -= n > 0 && (*message)[n - 1] == '\n';
            (*message)[n] = '\0';
            break;
        }
        if (event != LINE_TEXT) {
            mem_free(*message);
            *message = NULL;
            if (event == LINE_FAILED)
                err_set(e, ERR_IO, "standard input could not be read");
            return event == LINE_FAILED ? LINE_END : event;
        }
        p = part_of(line, !*message, &in_block);
        char *longer = mem_resize(*message, n + p.n + 2, 1);
        if (!longer) {
            mem_free(*message);
            *message = NULL;
            err_nomem(e, n + p.n, "a message");
            return LINE_END;
        }
        *message = longer;
        memcpy(longer + n, p.text, p.n);
        n += p.n;
        if (p.more && (n > 0 || !in_block)) /* a mark alone on its line adds no line */
            longer[n++] = '\n';
        longer[n] = '\0';
    }
    if (n > 0 && (*message)[n - 1] == '\n' && strchr(*message, '\n')[1] != '\0') /* nor at the end */
        (*message)[n - 1] = '\0';
    return LINE_TEXT;
}

static bool is_blank(const char *text)
{
    return !text[strspn(text, " \t\r\n")];
}

/* Adds a message to the history, for the arrow keys and for later sessions. */
static void remember(struct chat *c, const char *message)
{
    if (!c->interactive || is_blank(message))
        return;
    line_editor_remember(c->editor, message);
    chat_history_add(&c->history, message);
}

/* Handles a line: a message, or a command and the message that it sends. */
static err_code answer_message(struct chat *c, const char *message, bool *end, struct err *e)
{
    char *again = NULL;
    bool command = message[0] == '/' && message[1] != '/' && !strchr(message, '\n');
    if (is_blank(message))
        return ERR_OK;
    if (!command)
        return say(c, message + (message[0] == '/' && message[1] == '/'), e);
    err_code code = run_command(c, message, end, &again, e);
    if (code == ERR_OK && again)
        code = say(c, again, e);
    mem_free(again);
    return code;
}

/* Reads a line. After /edit, the message is in it already; line breaks within become continued lines. */
static void prefill(struct chat *c)
{
    for (char *line = c->prefill; line && *line;) {
        size_t n = strcspn(line, "\n");
        bool more = line[n] == '\n';
        line[n] = '\0';
        (void)line_editor_prefill(c->editor, line);
        if (more)
            (void)line_editor_prefill(c->editor, "\\\n");
        line += n + more;
    }
    mem_free(c->prefill);
    c->prefill = NULL;
}

/* On a terminal a failure is shown and the conversation continues; through a pipe it ends the program. */
static err_code converse(struct chat *c, struct err *e)
{
    bool end = false;
    while (!end) {
        char *message;
        if (c->interactive)
            cli_catch_interrupt(); /* at the prompt an interrupt clears the line */
        else
            cli_release_interrupt();
        prefill(c);
        enum line_event event = read_message(c, &message, e);
        if (event == LINE_INTERRUPTED || (event == LINE_END && c->interactive))
            putchar('\n');
        if (event == LINE_INTERRUPTED) {
            note(c, "Ctrl-D or /exit ends the conversation");
            continue;
        }
        if (event == LINE_END || !message)
            return e->code;
        remember(c, message);
        err_code code = answer_message(c, message, &end, e);
        mem_free(message);
        if (code != ERR_OK && (!c->interactive || code == ERR_NOMEM))
            return code;
        if (code != ERR_OK)
            note(c, e->text);
        *e = (struct err){0};
        fflush(stdout);
    }
    return ERR_OK;
}

static err_code open_template(struct chat *c, struct err *e)
{
    moebius_error error;
    const moebius_vocab *vocab = moebius_engine_vocab(c->opened.engine);
    if (c->template || moebius_vocab_template(vocab, NULL))
        return cli_open_template(c->template, c->model.path, vocab, &c->tmpl, e);
    note(c, "this model has no chat template: it just continues the text; --template FILE sets one");
    if (moebius_template_open(&c->tmpl, plain_template, sizeof plain_template - 1, vocab, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

static void remember_earlier(void *user, const char *text)
{
    line_editor_remember(user, text);
}

static void greet(const struct chat *c)
{
    const char *slash = strrchr(c->model.path, '/');
    if (!c->model.quiet && c->sampling.sampler.temperature > 0)
        note_format(c, "%s, context of %lld tokens, seed %lld", slash ? slash + 1 : c->model.path,
                    (long long)moebius_session_n_ctx(c->opened.session), (long long)c->sampling.seed);
    else if (!c->model.quiet)
        note_format(c, "%s, context of %lld tokens", slash ? slash + 1 : c->model.path,
                    (long long)moebius_session_n_ctx(c->opened.session));
    note(c, "/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
}

static err_code prepare(struct chat *c, struct err *e)
{
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(open_template(c, e));
    const struct run_texts texts = {.n_ctx = c->model.n_ctx};
    int64_t n_ctx = run_plan_begin(&c->model, c->opened.engine, &texts);
    TRY(cli_open_session(&c->model, n_ctx, &c->opened, e));
    TRY(cli_open_sampler(&c->sampling, c->opened.engine, &c->sampler, e));
    TRY(cli_open_grammar(&c->grammar_options, moebius_engine_vocab(c->opened.engine), &c->grammar, e));
    c->talk.model = &c->model;
    c->talk.opened = &c->opened;
    c->talk.grammar = c->grammar;
    c->talk.tmpl = c->tmpl;
    c->talk.vars = c->vars.vars;
    c->talk.n_vars = c->vars.n;
    c->talk.sampler = c->sampler;
    c->talk.max_answer = c->n;
    TRY(conversation_open(&c->talk, e));
    if (c->system)
        TRY(conversation_set_system(&c->talk, c->system, e));
    text_out_open(&c->out, stdout, c->raw);
    if (c->interactive && !c->raw)
        c->out.terminal = &c->lines;
    const bool has_style = terminal_has_style(stdout, c->color);
    c->is_styled = c->out.terminal && !c->plain && has_style && terminal_knows_escapes(stdout);
    c->view = (struct answer_view){.out = &c->out, .styled = has_style, .has_markdown = c->is_styled};
    TRY(line_editor_open(&c->editor, c->interactive, e));
    c->can_prefill = c->interactive && line_editor_prefill(c->editor, "");
    TRY(chat_history_read(&c->history, remember_earlier, c->editor, e));
    if (c->interactive)
        greet(c);
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct chat chat = {.sampling = cli_default_sampling(), .n = -1, .history = {.fd = -1}};
    struct option_list vars = {0};
    const struct option options[] = {
        MODEL_OPTIONS(chat.model),
        CAR_OPTIONS(chat.model),
        DRAFT_OPTIONS(chat.model),
        {"--system", OPT_STRING, &chat.system, "TEXT", "the system message", 0, 0, 0},
        {"--template", OPT_INPUT, &chat.template, "FILE", "use this chat template instead of the model's", 0, 0, 0,
         GROUP_FORM},
        {"--var", OPT_LIST, &vars, "NAME=JSON", "set a template variable, such as enable_thinking=false", 0, 0, 0,
         GROUP_FORM},
        {"-n", OPT_INT, &chat.n, "N", "longest answer, in tokens (-1: no limit)", -1, 1e9, 0},
        {"--ctx,-c", OPT_INT, &chat.model.n_ctx, "N",
         "context in tokens (default: the plan chooses, at most the model's)", 16, 1 << 30, 0},
        {"--plain", OPT_FLAG, &chat.plain, "", "show answers as plain text, without styled Markdown", 0, 0, 0,
         GROUP_OUTPUT},
        {"--quiet,-q", OPT_FLAG, &chat.model.quiet, "", "show neither speed nor progress", 0, 0, 0, GROUP_OUTPUT},
        {"--no-history", OPT_FLAG, &chat.no_history, "", "neither read nor write the input history", 0, 0, 0,
         GROUP_OUTPUT},
        RAW_OPTION(chat.raw),
        COLOR_OPTION(chat.color),
        SAMPLING_OPTIONS(chat.sampling),
        GRAMMAR_OPTIONS(chat.grammar_options),
    };
    struct err e = {0};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && chat.n == 0)
        code = err_set(&e, ERR_USAGE, "-n 0: expected -1, or 1 and more");
    if (code == ERR_OK)
        code = cli_parse_vars(&vars, &chat.vars, &e);
    if (code == ERR_OK)
        code = cli_check_sampling(&chat.sampling, &e);
    chat.interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (code == ERR_OK && chat.interactive && !chat.no_history)
        chat_history_open(&chat.history);
    if (code == ERR_OK) /* /save and /load */
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, ".", &e);
    if (code == ERR_OK)
        code = cli_check_grammar(&chat.grammar_options, &e);
    if (code == ERR_OK)
        code = prepare(&chat, &e);
    if (code == ERR_OK)
        code = converse(&chat, &e);
    line_editor_close(&chat.editor);
    chat_history_close(&chat.history);
    mem_free(chat.prefill);
    conversation_close(&chat.talk);
    moebius_sampler_close(&chat.sampler);
    moebius_grammar_close(&chat.grammar);
    cli_close_grammar(&chat.grammar_options);
    moebius_template_close(&chat.tmpl);
    cli_close(&chat.opened);
    return cli_exit(c, code, &e);
}

const struct command cmd_chat = {
    .name = "chat",
    .usage = "-m FILE [OPTIONS]",
    .summary = "talk to a model",
    .details =
        "Uses the model's own chat template. /help in the conversation lists its commands. If input or output is not "
        "a terminal, each line of standard input is a message, and answers go to standard output.",
    .hint = "`moebius generate --chat -p TEXT` answers one message",
    .runs_model = true,
    .run = run,
};
