#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/sandbox.h"
#include "cli/command_help.h"
#include "cli/commands.h"
#include "cli/line_editor.h"
#include "hub/pull.h"
#include "moebius/moebius.h"

enum { FACT_BYTES = 2048 };

/* The sandbox of this system. */
static void print_sandbox(void)
{
    char landlock[32] = "no Landlock";
    if (sandbox_landlock_version())
        snprintf(landlock, sizeof landlock, "Landlock %d", sandbox_landlock_version());
    printf("sandbox: %s, %s\n", landlock, sandbox_has_seccomp() ? "seccomp" : "no seccomp");
}

/* Reads the next "NAME: VALUE" of moebius_build_info, which separates them by "; ", and advances *at past it. */
static bool next_fact(const char **at, char *name, char *value, size_t n_bytes)
{
    const char *end = strstr(*at, "; "), *colon = strstr(*at, ": ");
    size_t n = end ? (size_t)(end - *at) : strlen(*at);
    if (!colon || n == 0)
        return false;
    snprintf(name, n_bytes, "%.*s", (int)(colon - *at), *at);
    snprintf(value, n_bytes, "%.*s", (int)(*at + n - colon - 2), colon + 2);
    *at += n + (end ? 2 : 0);
    return true;
}

/* The words of a value as a list, without those in brackets; commas or blanks separate them. */
static json_t *make_list(const char *value, bool in_brackets)
{
    json_t *list = json_array();
    bool is_in = false;
    for (const char *p = value; *(p += strspn(p, ", "));) {
        is_in = is_in || *p == '(';
        p += *p == '(';
        size_t n = strcspn(p, ", )");
        if (is_in == in_brackets)
            json_array_append_new(list, json_stringn(p, n));
        p += n;
        is_in = is_in && *p != ')';
        p += *p == ')';
    }
    return list;
}

/* Brackets hold the kernels of a device. */
static void add_fact(json_t *all, char *name, const char *value)
{
    for (char *p = name; *p; p++)
        *p = *p == ' ' ? '_' : *p;
    json_object_set_new(all, name, make_list(value, false));
    if (strchr(value, '('))
        json_object_set_new(all, "kernels", make_list(value, true));
}

static err_code print_json(struct err *e)
{
    char name[FACT_BYTES], value[FACT_BYTES];
    json_t *all =
        json_pack("{s:s, s:s, s:s, s:i, s:b}", "version", moebius_version(), "line_editor", line_editor_name(), "pull",
                  pull_library(), "landlock", sandbox_landlock_version(), "seccomp", sandbox_has_seccomp());
    for (const char *at = moebius_build_info(); all && next_fact(&at, name, value, sizeof name);)
        add_fact(all, name, value);
    if (!all)
        return err_nomem(e, FACT_BYTES, "the version");
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
    return ERR_OK;
}

static void print_text(void)
{
    enum { INDENT = 4 };
    char name[FACT_BYTES], value[FACT_BYTES];
    printf("moebius %s\n", moebius_version());
    for (const char *at = moebius_build_info(); next_fact(&at, name, value, sizeof name);)
        help_wrap(stdout, value, printf("%s: ", name), INDENT, help_width());
    printf("line editor: %s\npull: %s\n", line_editor_name(), pull_library());
    print_sandbox();
}

static int run(const struct command *c, int argc, char **argv)
{
    struct err e = {0};
    bool json = false;
    const struct option options[] = {{"--json", OPT_FLAG, &json, "", "print one JSON object", 0, 0, 0}};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && json)
        code = print_json(&e);
    else if (code == ERR_OK)
        print_text();
    return cli_exit(c, code, &e);
}

const struct command cmd_version = {
    .name = "version",
    .usage = "[--json]",
    .summary = "print the version and what this build contains",
    .group = COMMAND_LOOK,
    .run = run,
};
