/* template: a chat template's prompt for given messages, without a model's weights. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/input_text.h"
#include "cli/template_options.h"
#include "cli/text_out.h"

struct template_command {
    const char *model, *template, *messages, *tools;
    struct cli_vars vars;
    bool no_generation_prompt, ids_only, pieces, family, raw, no_sandbox;

    moebius_vocab *vocab;
    moebius_template *tmpl;
    char *messages_text, *tools_text;
    moebius_prompt *prompt;
};

static err_code print_tokens(const struct template_command *j, struct err *e)
{
    moebius_error error;
    int32_t *ids;
    size_t n;
    if (moebius_prompt_tokenize(j->prompt, j->vocab, &ids, &n, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    tokenize_print(j->vocab, ids, n, j->pieces);
    moebius_free(ids);
    return ERR_OK;
}

static void print_text(const struct template_command *j)
{
    size_t n;
    const char *text = moebius_prompt_text(j->prompt, &n);
    struct text_out out;
    text_out_open(&out, stdout, j->raw);
    text_out_write(&out, text, n);
    text_out_end(&out);
}

static const char *kind_of(const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}

/* Messages are an array of objects. */
static err_code check_messages(const char *path, const char *text, struct err *e)
{
    json_error_t error;
    json_t *list = json_read(text, strlen(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, &error), *message;
    err_code code = ERR_OK;
    size_t i;
    if (!list && !*error.text)
        return err_nomem(e, strlen(text), "the messages");
    if (!list)
        return err_set(e, ERR_FORMAT, "%s: messages: line %d, column %d: %s", path, error.line, error.column,
                       error.text);
    if (!json_is_array(list))
        code = err_set(e, ERR_FORMAT, "%s: messages: expected an array of objects, found %s", path, kind_of(list));
    json_array_foreach(list, i, message)
    {
        if (code == ERR_OK && !json_is_object(message))
            code = err_set(e, ERR_FORMAT, "%s: messages: expected an array of objects, found %s in it", path,
                           kind_of(message));
    }
    json_decref(list);
    return code;
}

static err_code render(struct template_command *j, struct err *e)
{
    moebius_error error;
    err_code code = ERR_OK;
    const moebius_template_input input = {.messages = j->messages_text,
                                          .tools = j->tools_text,
                                          .no_generation_prompt = j->no_generation_prompt,
                                          .vars = j->vars.vars,
                                          .n_vars = j->vars.n};
    if (moebius_template_render(j->tmpl, &input, &j->prompt, &error) != MOEBIUS_OK)
        code = err_adopt(e, &error);
    if (code == ERR_OK || code == ERR_FORMAT) /* after rendering, which bounds the size of the JSON */
        TRY(check_messages(j->messages, j->messages_text, e));
    if (code != ERR_OK)
        return err_prefix(e, "%s", j->template ? j->template : j->model);
    if (j->ids_only || j->pieces)
        TRY(print_tokens(j, e));
    else
        print_text(j);
    return ERR_OK;
}

static err_code print_prompt(struct template_command *j, struct err *e)
{
    moebius_error error;
    size_t n;
    if (!j->model && !j->template)
        return err_set(e, ERR_USAGE, "no template: name a model with -m FILE or a template with --template FILE");
    if (j->ids_only && j->pieces)
        return err_set(e, ERR_USAGE, "--ids and --pieces: choose one");
    if ((j->ids_only || j->pieces) && !j->model)
        return err_set(e, ERR_USAGE, "tokens need a vocabulary: name a model with -m FILE");
    if (!j->family)
        j->messages = cli_file_or_piped(j->messages);
    if (!j->messages && !j->family)
        return err_set(e, ERR_USAGE, "no messages: name a JSON file with --messages FILE");
    if (j->model && moebius_vocab_open(&j->vocab, j->model, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    TRY(cli_open_template(j->template, j->model, j->vocab, &j->tmpl, e));
    if (j->family) {
        puts(moebius_template_family(j->tmpl));
        return ERR_OK;
    }
    TRY(cli_read_file(j->messages, &j->messages_text, &n, e));
    if (j->tools)
        TRY(cli_read_file(j->tools, &j->tools_text, &n, e));
    return render(j, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct template_command j = {0};
    struct option_list vars = {0};
    const struct option options[] = {
        {"--model,-m", OPT_MODEL, &j.model, "FILE", "GGUF file with the template and special tokens", 0, 0, 0},
        {"--template", OPT_INPUT, &j.template, "FILE", "a template to use instead of the model's", 0, 0, 0},
        {"--messages", OPT_INPUT, &j.messages, "FILE", "messages, a JSON array (-: standard input)", 0, 0, 0},
        {"--tools", OPT_INPUT, &j.tools, "FILE", "tools, a JSON array", 0, 0, 0},
        {"--var", OPT_LIST, &vars, "NAME=JSON", "set a template variable, such as enable_thinking=false", 0, 0, 0},
        {"--no-generation-prompt", OPT_FLAG, &j.no_generation_prompt, "",
         "end with the last message, without the beginning of an answer", 0, 0, 0},
        {"--ids", OPT_FLAG, &j.ids_only, "", "print the prompt's token ids on one line", 0, 0, 0},
        {"--pieces", OPT_FLAG, &j.pieces, "", "print one line per token: id and text", 0, 0, 0},
        {"--family", OPT_FLAG, &j.family, "", "print the model's tool-call format instead of a prompt", 0, 0, 0},
        RAW_OPTION(j.raw),
        SANDBOX_OPTION(j.no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = cli_parse_vars(&vars, &j.vars, &e);
    if (code == ERR_OK)
        code = print_prompt(&j, &e);
    moebius_prompt_close(&j.prompt);
    mem_free(j.messages_text);
    mem_free(j.tools_text);
    moebius_template_close(&j.tmpl);
    moebius_vocab_close(&j.vocab);
    return cli_exit(c, code, &e);
}

const struct command cmd_template = {
    .name = "template",
    .usage = "(-m FILE | --template FILE) (--messages FILE.json | --family) [OPTIONS]",
    .summary = "print the prompt that a chat template makes of messages",
    .details =
        "Messages and tools have the form of the OpenAI and Hugging Face APIs. Special tokens in them stay text: only "
        "what the template itself writes becomes special tokens.",
    .group = COMMAND_LOOK,
    .run = run,
};
