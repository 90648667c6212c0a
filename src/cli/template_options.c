#include "cli/template_options.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/input_text.h"

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
