/* rm: removes a model that pull fetched, or another program of the Hub's. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "cli/model_names.h"

/* Asks at the terminal, or wherever standard input is; only y and yes are a yes. */
static bool is_wanted(const char *text, size_t n_models, uint64_t n_bytes)
{
    char answer[16] = "";
    fprintf(stderr, "Remove %s: %zu model%s, %.2f GB? [y/N] ", text, n_models, n_models > 1 ? "s" : "",
            (double)n_bytes / 1e9);
    if (!fgets(answer, sizeof answer, stdin))
        return false;
    answer[strcspn(answer, "\r\n")] = '\0';
    return strcmp(answer, "y") == 0 || strcmp(answer, "Y") == 0 || strcmp(answer, "yes") == 0;
}

static err_code remove_named(const struct hub_places *p, const struct model_name *name, const char *text, bool yes,
                             struct err *e)
{
    size_t n_models;
    uint64_t n_bytes;
    TRY(hub_cache_remove(p, name, false, &n_models, &n_bytes, e));
    if (n_models == 0)
        return err_set(e, ERR_USAGE, "%s: there is nothing of it here (moebius list)", text);
    if (!yes && !is_wanted(text, n_models, n_bytes))
        return err_set(e, ERR_CANCELLED, "%s: nothing was removed", text);
    TRY(hub_cache_remove(p, name, true, &n_models, &n_bytes, e));
    fprintf(stderr, "%s: %.2f GB removed\n", text, (double)n_bytes / 1e9);
    return ERR_OK;
}

static err_code remove_model(const char *word, bool yes, struct err *e)
{
    char *text = NULL;
    struct hub_places places;
    struct model_name name;
    TRY(hub_places_find(&places, e));
    err_code code = model_names_parse(&places, word, &name, &text, e);
    if (code == ERR_OK && name.kind == MODEL_NAME_FILE)
        code = err_set(e, ERR_USAGE, "%s: expected a name that `moebius list` shows", word);
    if (code == ERR_OK)
        code = remove_named(&places, &name, text, yes, e);
    mem_free(text);
    return code;
}

static int run(const struct command *c, int argc, char **argv)
{
    bool yes = false, no_sandbox = false;
    const struct option options[] = {
        {"--yes,-y", OPT_FLAG, &yes, "", "do not ask for confirmation", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && argc != 2)
        code = err_set(&e, ERR_USAGE, "no model: expected a name that `moebius list` shows");
    if (code == ERR_OK)
        code = remove_model(argv[1], yes, &e);
    return cli_exit(c, code, &e);
}

const struct command cmd_rm = {
    .name = "rm",
    .usage = "NAME [-y]",
    .summary = "remove a downloaded model, or a part of one",
    .details = "hf:OWNER/REPO means all models of a repository. Files that another revision uses are kept.",
    .max_operand = 1,
    .hub = HUB_REMOVES,
    .group = COMMAND_MODELS,
    .run = run,
};
