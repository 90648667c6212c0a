/* chat: a conversation in the terminal, or line by line through pipes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/answer_view.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/grammar_options.h"
#include "cli/line_editor.h"
#include "cli/sampling_options.h"
#include "cli/stats.h"
#include "cli/terminal.h"

enum { DEFAULT_CTX = 8192 };

/* For a model that brings no template: its text goes on, as it does with `generate`. */
static const char plain_template[] = "{%- for m in messages %}{{ m.content }}\n{% endfor -%}";

struct chat {
    struct model_options model;
    struct sampling_options sampling;
    struct grammar_options grammar_options;
    struct cli_vars vars;
    const char *template, *system, *color;
    bool raw;
    int64_t n;

    struct opened opened;
    moebius_template *tmpl;
    moebius_sampler *sampler;
    moebius_grammar *grammar; /* NULL without one */
    struct conversation talk;
    struct line_editor *editor;
    struct text_out out;
    struct answer_view view;
    bool interactive;
};

static void note(const struct chat *c, const char *text)
{
    fprintf(stderr, terminal_has_style(stderr, c->color) ? "\033[2m[%s]\033[0m\n" : "[%s]\n", text);
}

/* ---- commands ------------------------------------------------------------------------------------------------ */

static void print_help(void)
{
    puts("/reset           forget the conversation, but not the system message\n"
         "/system [TEXT]   show or set the system message (/system - removes it)\n"
         "/save FILE       write the conversation as JSON\n"
         "/load FILE       go on with one that was written\n"
         "/stats           tokens and speed so far\n"
         "/help            this\n"
         "/exit            end; Ctrl-D does, too\n"
         "Ctrl-C stops an answer. A line that ends with \\ goes on in the next; // begins one with a slash.");
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
           (long long)s->n_answer, (long long)s->n_decoded, per_second(s->n_decoded, s->decode_ns));
    if (c->sampling.sampler.temperature > 0)
        printf("seed: %lld\n", (long long)c->sampling.seed);
    stats_print_car(c->opened.engine, stdout);
}

/* "": shows it; "-": takes it away. */
static err_code set_system(struct chat *c, const char *text, struct err *e)
{
    const char *now = conversation_system(&c->talk);
    if (*text)
        return conversation_set_system(&c->talk, strcmp(text, "-") ? text : "", e);
    now = now ? now : "there is no system message: /system TEXT sets one";
    text_out_write(&c->out, now, strlen(now));
    text_out_end(&c->out);
    putchar('\n');
    return ERR_OK;
}

static err_code save_or_load(struct chat *c, bool save, const char *path, struct err *e)
{
    if (!*path)
        return err_set(e, ERR_USAGE, save ? "/save needs a file's name" : "/load needs a file's name");
    err_code code = save ? conversation_save(&c->talk, path, e) : conversation_load(&c->talk, path, e);
    const struct err why = *e;
    if (code == ERR_IO && !c->model.no_sandbox && strstr(why.text, strerror(EACCES)))
        err_set(e, code,
                "%s (/save and /load reach files below the folder that chat was started in; with --no-sandbox, any)",
                why.text);
    return code;
}

/* A line that begins with one slash. *end: it was /exit. */
static err_code run_command(struct chat *c, const char *line, bool *end, struct err *e)
{
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    bool save = n == 5 && !strncmp(line, "/save", n), load = n == 5 && !strncmp(line, "/load", n);
    if (n == 5 && (!strncmp(line, "/exit", n) || !strncmp(line, "/quit", n))) {
        *end = true;
        return ERR_OK;
    }
    if (n == 7 && !strncmp(line, "/system", n))
        return set_system(c, rest, e);
    if (save || load)
        return save_or_load(c, save, rest, e);
    if (n == 5 && !strncmp(line, "/help", n))
        print_help();
    else if (n == 6 && !strncmp(line, "/reset", n))
        conversation_reset(&c->talk);
    else if (n == 6 && !strncmp(line, "/stats", n))
        print_stats(c);
    else
        return err_set(e, ERR_USAGE, "there is no command %.*s: /help lists them", (int)n, line);
    return ERR_OK;
}

/* ---- turns --------------------------------------------------------------------------------------------------- */

static err_code say(struct chat *c, const char *text, struct err *e)
{
    struct conversation_turn turn;
    char words[80];
    cli_catch_interrupt(); /* an interrupt counts for one answer */
    err_code code = conversation_say(&c->talk, text, answer_view_write, &c->view, &turn, e);
    answer_view_end(&c->view);
    if (turn.n_dropped) {
        snprintf(words, sizeof words, "the context was full: the %zu oldest messages are forgotten", turn.n_dropped);
        note(c, words);
    }
    if (turn.interrupted)
        note(c, "interrupted");
    else if (turn.out_of_tokens)
        note(c, "cut after the number of tokens that -n allows");
    if (ferror(stdout))
        return err_set(e, ERR_IO, "standard output: the answer could not be written");
    if (turn.interrupted && !c->interactive) /* whoever is not there to go on wants it all to end */
        return err_set(e, ERR_CANCELLED, "interrupted");
    return code;
}

/* A whole message, of one line or several that end with a backslash; owned by the caller. */
static enum line_event read_message(struct chat *c, char **message, struct err *e)
{
    const char *line;
    size_t n = 0;
    bool more = true;
    *message = NULL;
    while (more) {
        enum line_event event = line_editor_read(c->editor, n ? "... " : "> ", &line);
        if (event != LINE_TEXT) {
            mem_free(*message);
            *message = NULL;
            if (event == LINE_FAILED)
                err_set(e, ERR_IO, "standard input could not be read");
            return event == LINE_FAILED ? LINE_END : event;
        }
        size_t length = strlen(line);
        more = length > 0 && line[length - 1] == '\\';
        char *longer = mem_resize(*message, n + length + 1, 1);
        if (!longer) {
            mem_free(*message);
            *message = NULL;
            err_nomem(e, n + length, "a message");
            return LINE_END;
        }
        *message = longer;
        memcpy(longer + n, line, length + 1);
        n += length;
        if (more)
            longer[n - 1] = '\n';
    }
    return LINE_TEXT;
}

/* At a terminal a failure is shown and the conversation goes on; through a pipe it is the end. */
static err_code converse(struct chat *c, struct err *e)
{
    bool end = false;
    while (!end) {
        char *message;
        if (c->interactive)
            cli_catch_interrupt(); /* at the prompt it clears the line */
        else
            cli_release_interrupt();
        enum line_event event = read_message(c, &message, e);
        if (event == LINE_INTERRUPTED || (event == LINE_END && c->interactive))
            putchar('\n');
        if (event == LINE_INTERRUPTED)
            continue;
        if (event == LINE_END || !message)
            return e->code;
        bool command = message[0] == '/' && message[1] != '/';
        err_code code = ERR_OK;
        if (command)
            code = run_command(c, message, &end, e);
        else if (*message)
            code = say(c, message + (message[0] == '/'), e);
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
    note(c, "this model has no chat template: it goes on with the text as it stands; --template FILE names one");
    if (moebius_template_open(&c->tmpl, plain_template, sizeof plain_template - 1, vocab, &error) != MOEBIUS_OK)
        return cli_error(e, &error);
    return ERR_OK;
}

static err_code prepare(struct chat *c, struct err *e)
{
    TRY(cli_open_engine(&c->model, &c->opened, e));
    TRY(open_template(c, e));
    int64_t train = moebius_n_ctx_train(c->opened.engine);
    int64_t n_ctx = c->model.n_ctx ? c->model.n_ctx : train < DEFAULT_CTX ? train : DEFAULT_CTX;
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
    c->interactive = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    text_out_open(&c->out, stdout, c->raw);
    c->view = (struct answer_view){.out = &c->out, .styled = terminal_has_style(stdout, c->color)};
    TRY(line_editor_open(&c->editor, c->interactive, e));
    if (c->interactive)
        note(c, "/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
    return ERR_OK;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct chat chat = {.sampling = cli_default_sampling(), .n = -1};
    struct option_list vars = {0};
    const struct option options[] = {
        MODEL_OPTIONS(chat.model),
        CAR_OPTIONS(chat.model),
        {"--system", OPT_STRING, &chat.system, "TEXT", "the system message", 0, 0, 0},
        {"--template", OPT_INPUT, &chat.template, "FILE", "a chat template to use instead of the model's", 0, 0, 0,
         GROUP_FORM},
        {"--var", OPT_LIST, &vars, "NAME=JSON", "a variable of the template, such as enable_thinking=false", 0, 0, 0,
         GROUP_FORM},
        {"-n", OPT_INT, &chat.n, "N", "tokens of an answer at most; -1: as many as it takes", -1, 1e9, 0},
        {"--ctx,-c", OPT_INT, &chat.model.n_ctx, "N", "context; the model's, up to 8192", 16, 1 << 30, 0},
        RAW_OPTION(chat.raw),
        COLOR_OPTION(chat.color),
        SAMPLING_OPTIONS(chat.sampling),
        GRAMMAR_OPTIONS(chat.grammar_options),
    };
    struct err e = {0};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = cli_parse_vars(&vars, &chat.vars, &e);
    if (code == ERR_OK)
        code = cli_check_sampling(&chat.sampling, &e);
    if (code == ERR_OK) /* /save and /load */
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, ".", &e);
    if (code == ERR_OK)
        code = prepare(&chat, &e);
    if (code == ERR_OK)
        code = converse(&chat, &e);
    line_editor_close(&chat.editor);
    conversation_close(&chat.talk);
    moebius_sampler_close(&chat.sampler);
    moebius_grammar_close(&chat.grammar);
    moebius_template_close(&chat.tmpl);
    cli_close(&chat.opened);
    return cli_exit(c, code, &e);
}

const struct command cmd_chat = {
    .name = "chat",
    .usage = "-m FILE [OPTIONS]",
    .summary = "talk with a model",
    .details =
        "Uses the model's own chat template. /help in the conversation lists its commands. When input or output is no\n"
        "terminal, each line of standard input is a message, and the answers go to standard output.",
    .runs_model = true,
    .run = run,
};
