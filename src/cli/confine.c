#define _DEFAULT_SOURCE /* realpath */
#include "cli/confine.h"

#include <dirent.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/sandbox.h"
#include "base/split_set.h"
#include "cli/gpu_files.h"
#include "cli/model_names.h"
#include "cli/model_options.h"
#include "cli/output_check.h"
#include "cli/rank_run.h"
#include "engine/cache_file.h"
#include "hub/hub.h"

/* What every command may read: facts about the process and the machine, libraries that are loaded on demand (on NixOS
 * and Guix in folders of their own), locales and time zones, and the program's own symbols for a sanitizer's report. */
static const char *const system_paths[] = {
    "/proc",      "/sys",       "/dev/urandom",     "/usr",           "/lib",          "/lib64",
    "/nix/store", "/gnu/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/terminfo", "/proc/self/exe",
};

static err_code allow_system(struct sandbox *s, struct err *e)
{
    static const char *const settings[] = {".editrc", ".terminfo"}, *const places[] = {"EDITRC", "TERMINFO"};
    char path[PATH_MAX];
    const char *home = getenv("HOME");
    for (size_t i = 0; i < sizeof system_paths / sizeof *system_paths; i++)
        TRY(sandbox_allow(s, system_paths[i], SANDBOX_READ, e));
    for (int i = 0; i < 2; i++) {
        const char *place = getenv(places[i]);
        if (home && (size_t)snprintf(path, sizeof path, "%s/%s", home, settings[i]) < sizeof path)
            TRY(sandbox_allow(s, path, SANDBOX_READ, e));
        if (place)
            TRY(sandbox_allow(s, place, SANDBOX_READ, e));
    }
    return ERR_OK;
}

/* Allows reading a GGUF file and the checksums beside it. */
static err_code allow_model_file(struct sandbox *s, const char *path, struct err *e)
{
    char sums[PATH_MAX];
    TRY(sandbox_allow(s, path, SANDBOX_READ, e));
    if ((size_t)snprintf(sums, sizeof sums, "%s.crc32c", path) >= sizeof sums)
        return ERR_OK;
    return sandbox_allow(s, sums, SANDBOX_READ, e);
}

/* Allows reading a folder of models or of a store, and the targets of links in it. */
static err_code allow_folder(struct sandbox *s, const char *path, struct err *e)
{
    char file[PATH_MAX];
    DIR *folder = opendir(path);
    err_code code = sandbox_allow(s, path, SANDBOX_READ, e);
    for (const struct dirent *entry; code == ERR_OK && folder && (entry = readdir(folder));)
        if ((strstr(entry->d_name, ".gguf") || !strcmp(entry->d_name, "experts.bin")) &&
            (size_t)snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < sizeof file)
            code = sandbox_allow(s, file, SANDBOX_READ, e);
    if (folder)
        closedir(folder);
    return code;
}

/* Allows reading all parts of a split set, up to the first that is missing. The path may be a store's folder. */
static err_code allow_model(struct sandbox *s, const char *path, struct err *e)
{
    char part[PATH_MAX];
    struct split_set set;
    size_t n = (size_t)snprintf(part, sizeof part, "%s", path);
    TRY(allow_folder(s, path, e));
    TRY(allow_model_file(s, path, e));
    if (n >= sizeof part || !split_set_parse(&set, path, n))
        return ERR_OK;
    for (int i = 1; i <= set.n_part; i++) {
        split_set_suffix(part + set.n_name, i, set.n_part);
        if (access(part, F_OK) != 0)
            break;
        TRY(allow_model_file(s, part, e));
    }
    return ERR_OK;
}

/* Allows the folder of a file, since the file may have been replaced when it is read again. */
static err_code allow_folder_of(struct sandbox *s, const char *path, struct err *e)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    TRY(sandbox_allow(s, folder, SANDBOX_READ, e));
    return sandbox_allow(s, path, SANDBOX_READ, e);
}

/* Allows writing: a folder, or a device or FIFO, itself; for anything else the nearest folder above it. */
static err_code allow_output_at(struct sandbox *s, const char *path, struct err *e)
{
    struct stat st;
    char above[PATH_MAX];
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return sandbox_allow(s, path, SANDBOX_WRITE, e);
    if ((size_t)snprintf(above, sizeof above, "%s", path) >= sizeof above)
        return ERR_OK;
    do {
        char *slash = strrchr(above, '/');
        if (!slash)
            return sandbox_allow(s, ".", SANDBOX_WRITE, e);
        slash[slash == above] = '\0';
    } while (stat(above, &st) != 0 && above[1]);
    return sandbox_allow(s, above, SANDBOX_WRITE, e);
}

/* Allows writing to a path and, if it is a link, to its target. */
static err_code allow_output(struct sandbox *s, const char *path, struct err *e)
{
    char real[PATH_MAX];
    TRY(allow_output_at(s, path, e));
    return realpath(path, real) ? allow_output_at(s, real, e) : ERR_OK;
}

static err_code allow_folders(struct sandbox *s, const char *text, bool written, struct err *e)
{
    struct dir_list list;
    if (cli_split_dirs(text, &list, e) != ERR_OK) { /* the command will report it */
        cli_dirs_close(&list);
        return ERR_OK;
    }
    err_code code = ERR_OK;
    for (int i = 0; code == ERR_OK && i < list.n; i++)
        code = written ? allow_output(s, list.dirs[i], e) : allow_folder(s, list.dirs[i], e);
    cli_dirs_close(&list);
    return code;
}

static err_code allow(struct sandbox *s, enum option_kind kind, const char *value, struct err *e)
{
    if (!strcmp(value, "-")) /* a standard stream, which is open already */
        return ERR_OK;
    switch (kind) {
    case OPT_INPUT:
    case OPT_INPUT_OLD: return sandbox_allow(s, value, SANDBOX_READ, e);
    case OPT_INPUT_AGAIN: return allow_folder_of(s, value, e);
    case OPT_OUTPUT: return allow_output(s, value, e);
    case OPT_MODEL: return allow_model(s, value, e);
    case OPT_MODELS: return allow_folder(s, value, e);
    case OPT_FOLDERS: return allow_folders(s, value, false, e);
    case OPT_OUTPUT_FOLDERS: return allow_folders(s, value, true, e);
    case OPT_DEVICES: return strstr(value, "vulkan") ? gpu_files_allow(s, e) : ERR_OK;
    case OPT_GPU: return strcmp(value, "none") != 0 ? gpu_files_allow(s, e) : ERR_OK;
    default: return ERR_OK;
    }
}

/* Where MPI keeps the memory that processes of a machine share, in files that it removes at the end. */
static err_code allow_shared_memory(struct sandbox *s, struct err *e)
{
    const char *folder = getenv("OMPI_MCA_btl_vader_backing_directory");
    return sandbox_allow(s, folder ? folder : "/dev/shm", SANDBOX_REMOVE, e);
}

/* Allows the cache folder. It is created first, because only existing folders can be allowed; if that fails, the code
 * that writes there reports why. */
static err_code allow_cache(struct sandbox *s, enum sandbox_access access, struct err *e)
{
    char *folder;
    struct err why;
    TRY(cache_file_path("", &folder, e));
    if (!folder)
        return ERR_OK;
    (void)!cache_file_make_folders(folder, &why);
    err_code code = sandbox_allow(s, folder, access, e);
    mem_free(folder);
    return code;
}

/* ---- models by name --------------------------------------------------------------------------------------------- */

/* Creates the folder, because only existing folders can be allowed. */
static err_code allow_kept_folder(struct sandbox *s, const char *folder, enum sandbox_access access, struct err *e)
{
    char below[PATH_MAX];
    struct err why;
    if (!*folder)
        return ERR_OK;
    if (access != SANDBOX_READ && (size_t)snprintf(below, sizeof below, "%s/", folder) < sizeof below)
        (void)!cache_file_make_folders(below, &why);
    return sandbox_allow(s, folder, access, e);
}

/* Allows reading the files by which host names and certificates are looked up. */
static err_code allow_network(struct sandbox *s, struct err *e)
{
    static const char *const paths[] = {
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/nsswitch.conf",
        "/etc/gai.conf",
        "/etc/services",
        "/etc/ssl",
        "/etc/pki",
        "/etc/ca-certificates",
        "/etc/crypto-policies",
        "/etc/gnutls",
        "/run/systemd/resolve",
        "/run/nscd",
        "/var/run/nscd",
    };
    static const char *const names[] = {"SSL_CERT_FILE", "SSL_CERT_DIR"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        TRY(sandbox_allow(s, paths[i], SANDBOX_READ, e));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            TRY(sandbox_allow(s, getenv(names[i]), SANDBOX_READ, e));
    return ERR_OK;
}

static err_code allow_hub(struct sandbox *s, enum hub_use use, struct err *e)
{
    struct hub_places p;
    const enum sandbox_access models = use == HUB_REMOVES || use == HUB_FETCHES ? SANDBOX_KEEP : SANDBOX_READ;
    if (use == HUB_NONE)
        return ERR_OK;
    TRY(hub_places_find(&p, e));
    TRY(allow_kept_folder(s, p.cache, models, e));
    TRY(allow_kept_folder(s, p.downloads, models, e));
    char *slash = strrchr(p.aliases, '/');
    if (slash)
        *slash = '\0';
    TRY(allow_kept_folder(s, p.aliases, use == HUB_NAMES ? SANDBOX_WRITE : SANDBOX_READ, e));
    if (use == HUB_FETCHES) /* a plan needs the machine's file */
        TRY(allow_cache(s, SANDBOX_READ, e));
    return use == HUB_FETCHES ? allow_network(s, e) : ERR_OK;
}

err_code cli_confine_hub(enum hub_use use, bool no_sandbox, struct err *e)
{
    struct sandbox s;
    if (no_sandbox)
        return ERR_OK;
    err_code code = sandbox_open(&s, use == HUB_FETCHES ? SANDBOX_CONNECT : 0, e);
    if (code == ERR_OK)
        code = allow_system(&s, e);
    if (code == ERR_OK)
        code = allow_hub(&s, use, e);
    if (code == ERR_OK)
        code = sandbox_enter(&s, e);
    sandbox_close(&s);
    return code == ERR_OK ? code : err_prefix(e, "without --no-sandbox");
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static bool is_switched_off(const struct option *options, int n_option)
{
    for (int i = 0; i < n_option; i++)
        if (!strcmp(options[i].name, "--no-sandbox"))
            return *(bool *)options[i].out;
    return false;
}

static err_code confine(const struct command *c, const struct option *options, int n_option, int argc, char **argv,
                        const char *output, struct err *e)
{
    enum { N_OPERAND = sizeof c->operands / sizeof *c->operands };
    struct sandbox s;
    bool is_off = is_switched_off(options, n_option);
    if (is_off || c->hub != HUB_NONE)
        return c->hub == HUB_NONE ? ERR_OK : cli_confine_hub(c->hub, is_off, e);
    const unsigned needs = (c->runs_model || c->keeps_files ? SANDBOX_IO_URING : 0) | (c->serves ? SANDBOX_ACCEPT : 0) |
                           (rank_run_ranks() ? SANDBOX_ALL_THREADS : 0);
    err_code code = sandbox_open(&s, needs, e);
    if (code == ERR_OK)
        code = allow_system(&s, e);
    for (int i = 0; code == ERR_OK && i < n_option; i++)
        if (options[i].kind == OPT_GPU && !*(const char **)options[i].out && gpu_files_default())
            code = gpu_files_allow(&s, e);
        else if (options[i].kind >= OPT_INPUT && *(const char **)options[i].out)
            code = allow(&s, options[i].kind, *(const char **)options[i].out, e);
        else if (options[i].kind == OPT_LISTED && *(bool *)options[i].out)
            code = allow_hub(&s, HUB_READS, e);
    for (int i = 1; code == ERR_OK && i < argc && i <= N_OPERAND; i++)
        code = allow(&s, c->operands[i - 1], argv[i], e);
    if (code == ERR_OK && output)
        code = allow_output(&s, output, e);
    if (code == ERR_OK && (c->runs_model || c->keeps_files))
        code = allow_cache(&s, SANDBOX_WRITE, e);
    if (code == ERR_OK && rank_run_ranks())
        code = allow_shared_memory(&s, e);
    if (code == ERR_OK)
        code = sandbox_enter(&s, e);
    sandbox_close(&s);
    return code == ERR_OK ? code : err_prefix(e, "without --no-sandbox");
}

/* The options of all commands that run a model. */
static const struct model_options *model_options(const struct option *options, int n_option)
{
    const struct option *path = options_find(options, n_option, "--model", strlen("--model"));
    return (const struct model_options *)((const char *)path->out - offsetof(struct model_options, path));
}

err_code cli_find_models(const struct command *c, const struct option *options, int n_option, int argc, char **argv,
                         struct err *e)
{
    TRY(cli_check_outputs(options, n_option, e));
    if (c->runs_model && !moebius_ranks_are_wanted()) /* with several processes only the first needs inputs */
        TRY(cli_check_inputs(options, n_option, e));
    return model_names_resolve(c, options, n_option, argc, argv, is_switched_off(options, n_option), e);
}

err_code cli_confine(const struct command *c, const struct option *options, int n_option, int argc, char **argv,
                     const char *output, struct err *e)
{
    TRY(cli_find_models(c, options, n_option, argc, argv, e));
    TRY(cli_check_outputs(options, n_option, e)); /* after names of models have become paths */
    if (c->runs_model)
        TRY(rank_run_begin(e));
    if (c->runs_model && rank_run_ranks() && rank_run_is_first())
        TRY(cli_check_inputs(options, n_option, e));
    TRY(confine(c, options, n_option, argc, argv, output, e));
    if (!rank_run_is_first())
        rank_run_serve(model_options(options, n_option));
    return ERR_OK;
}

err_code cli_begin(const struct command *c, const struct option *options, int n_option, int *argc, char **argv,
                   struct err *e)
{
    TRY(options_parse(c, options, n_option, argc, argv, e));
    return cli_confine(c, options, n_option, *argc, argv, NULL, e);
}
