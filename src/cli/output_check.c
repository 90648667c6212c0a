#define _DEFAULT_SOURCE /* lstat */
#include "cli/output_check.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/split_set.h"

/* The file that an option names; NULL: none, or a standard stream. */
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

/* Whether a file is one of the parts of a model. */
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

/* Where an output goes. */
struct output_place {
    struct stat at;   /* of the file or, if there is none, of its folder */
    const char *name; /* the file's name in that folder; "": the file exists */
};

static bool is_standard_stream(const struct stat *file)
{
    struct stat st;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino)
            return true;
    return false;
}

/* Refuses an output that can't be created. */
static err_code find_place(const struct option *o, struct output_place *out, struct err *e)
{
    char folder[PATH_MAX] = ".";
    const char *path = value_of(o), *slash = strrchr(path, '/');
    const struct option_names names = option_names(o);
    struct stat link;
    *out = (struct output_place){.name = ""};
    if (stat(path, &out->at) == 0)
        return ERR_OK;
    if (errno != ENOENT)
        return err_set(e, ERR_IO, "%.*s %s: %s", names.n_name, names.name, path, strerror(errno));
    if (lstat(path, &link) == 0)
        return err_set(e, ERR_IO, "%.*s %s: is a link to a file that does not exist", names.n_name, names.name, path);
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    if (stat(folder, &out->at) != 0)
        return err_set(e, ERR_IO, "%.*s %s: %s: %s; expected a folder that is there", names.n_name, names.name, path,
                       folder, strerror(errno));
    out->name = slash ? slash + 1 : path;
    return ERR_OK;
}

/* The earlier output, among the first n_before, that goes to the same place; NULL: none does. */
static const struct option *find_writer(const struct option *options, int n_before, const struct output_place *place,
                                        struct err *e)
{
    struct output_place other;
    if (!*place->name && (!S_ISREG(place->at.st_mode) || is_standard_stream(&place->at)))
        return NULL; /* devices, FIFOs and streams may take several outputs */
    for (int i = 0; i < n_before; i++)
        if (options[i].kind == OPT_OUTPUT && value_of(&options[i]) && find_place(&options[i], &other, e) == ERR_OK &&
            other.at.st_dev == place->at.st_dev && other.at.st_ino == place->at.st_ino &&
            strcmp(other.name, place->name) == 0)
            return &options[i];
    return NULL;
}

err_code cli_check_outputs(const struct option *options, int n_option, struct err *e)
{
    for (int i = 0; i < n_option; i++) {
        struct output_place place;
        const struct option *o = &options[i], *other = NULL;
        if (o->kind != OPT_OUTPUT || !value_of(o))
            continue;
        TRY(find_place(o, &place, e));
        bool is_read =
            !*place.name && S_ISREG(place.at.st_mode) && (other = find_reader(options, n_option, &place.at)) != NULL;
        if (!is_read)
            other = find_writer(options, i, &place, e);
        if (other) {
            struct option_names out = option_names(o), names = option_names(other);
            return err_set(e, ERR_USAGE, "%.*s %s: %.*s %s this file; expected another one to write", out.n_name,
                           out.name, value_of(o), names.n_name, names.name, is_read ? "reads" : "writes");
        }
    }
    return ERR_OK;
}

err_code cli_check_inputs(const struct option *options, int n_option, struct err *e)
{
    for (int i = 0; i < n_option; i++) {
        const struct option *o = &options[i];
        bool is_read = o->kind == OPT_INPUT || o->kind == OPT_INPUT_AGAIN || o->kind == OPT_INPUT_OLD;
        if (is_read && value_of(o) && access(value_of(o), R_OK) != 0)
            return err_set(e, ERR_IO, "%s: %s", value_of(o), strerror(errno));
    }
    return ERR_OK;
}
