/* alias: short names for models. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/printable.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "hub/hub.h"

static err_code print_aliases(const struct hub_places *p, const char *name, struct err *e)
{
    char shown[PRINTABLE_FORMAT_BYTES];
    struct aliases a;
    TRY(aliases_read(p->aliases, &a, e));
    err_code code = name && !aliases_find(&a, name) ? err_set(e, ERR_USAGE, "there is no alias %s", name) : ERR_OK;
    for (size_t i = 0; i < a.n; i++) {
        (void)printable_line(a.list[i].target, strlen(a.list[i].target), shown, sizeof shown);
        if (!name || strcmp(name, a.list[i].name) == 0)
            printf("%s = %s\n", a.list[i].name, shown);
    }
    aliases_close(&a);
    return code;
}

/* For a file the absolute path is stored, since the alias may be used in any folder. */
static err_code put(const struct hub_places *p, const char *name, const char *target, struct err *e)
{
    char folder[HUB_PLACE_BYTES], path[2 * HUB_PLACE_BYTES];
    struct model_name parsed;
    TRY(model_name_parse(&parsed, target, p->endpoint, e));
    if (parsed.kind == MODEL_NAME_FILE && access(target, F_OK) != 0)
        return err_set(e, ERR_USAGE, "%s: expected a file that is there, hf:OWNER/REPO:WHAT, or an address", target);
    if (parsed.kind != MODEL_NAME_FILE || *target == '/')
        return aliases_put(p->aliases, name, target, e);
    if (!getcwd(folder, sizeof folder) || (size_t)snprintf(path, sizeof path, "%s/%s", folder, target) >= sizeof path)
        return err_set(e, ERR_FAIL, "%s: its whole path can't be told", target);
    return aliases_put(p->aliases, name, path, e);
}

static err_code alias(int argc, char **argv, bool is_removed, struct err *e)
{
    struct hub_places p;
    TRY(hub_places_find(&p, e));
    if (is_removed && argc != 2)
        return err_set(e, ERR_USAGE, "--remove: expected the NAME of an alias");
    if (argc == 2 && is_removed)
        return aliases_put(p.aliases, argv[1], NULL, e);
    return argc == 3 ? put(&p, argv[1], argv[2], e) : print_aliases(&p, argc == 2 ? argv[1] : NULL, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    bool is_removed = false, no_sandbox = false;
    const struct option options[] = {
        {"--remove", OPT_FLAG, &is_removed, "", "remove the alias", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = alias(argc, argv, is_removed, &e);
    return cli_exit(c, code, &e);
}

const struct command cmd_alias = {
    .name = "alias",
    .usage = "[NAME [TARGET]] [--remove]",
    .summary = "define, show or remove short names for models",
    .details = "TARGET is what -m takes: hf:OWNER/REPO:WHAT, an address, or a file. Without arguments, all aliases are "
               "listed.",
    .max_operand = 2,
    .hub = HUB_NAMES,
    .group = COMMAND_MODELS,
    .run = run,
};
