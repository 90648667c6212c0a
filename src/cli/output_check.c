#include "cli/output_check.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/split_set.h"

/* What an option names; NULL: nothing, or a standard stream. */
static const char *value_of(const struct option *o)
{
    const char *value = *(const char **)o->out;
    return value && strcmp(value, "-") != 0 ? value : NULL;
}

static bool is_file(const char *path, const struct stat *file)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}

/* Whether a model has the file, in one of its parts. */
static bool has_part(const char *path, const struct stat *file)
{
    struct split_set s;
    char part[PATH_MAX];
    if (is_file(path, file))
        return true;
    if (!split_set_parse(&s, path, strlen(path)) || (size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
        return false;
    for (int i = 1; i <= s.n_part; i++) {
        split_set_suffix(part + s.n_name, i, s.n_part);
        if (is_file(part, file))
            return true;
    }
    return false;
}

bool cli_is_of_model(const char *model, const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && has_part(model, &st);
}

/* The option that reads the file; NULL: none does. */
static const struct option *find_reader(const struct option *options, int n_option, const struct stat *file)
{
    for (int i = 0; i < n_option; i++) {
        const struct option *o = &options[i];
        if (o->kind == OPT_INPUT && value_of(o) && is_file(value_of(o), file))
            return o;
        if (o->kind == OPT_MODEL && value_of(o) && has_part(value_of(o), file))
            return o;
    }
    return NULL;
}

err_code cli_check_outputs(const struct option *options, int n_option, struct err *e)
{
    for (int i = 0; i < n_option; i++) {
        struct stat st;
        const struct option *o = &options[i];
        if (o->kind != OPT_OUTPUT || !value_of(o) || stat(value_of(o), &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        const struct option *reader = find_reader(options, n_option, &st);
        if (reader) {
            struct option_names out = option_names(o), in = option_names(reader);
            return err_set(e, ERR_USAGE, "%.*s %s: %.*s reads this file; expected another one to write", out.n_name,
                           out.name, value_of(o), in.n_name, in.name);
        }
    }
    return ERR_OK;
}
