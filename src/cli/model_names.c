#define _DEFAULT_SOURCE
#include "cli/model_names.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/printable.h"
#include "cli/confine.h"
#include "cli/pull_view.h"

/* Paths that options and operands point to. They live until the program ends. */
static struct arena paths;

void model_names_end(void)
{
    arena_close(&paths);
}

err_code model_names_parse(const struct hub_places *p, const char *text, struct model_name *out, char **meant,
                           struct err *e)
{
    struct aliases a;
    *meant = NULL;
    TRY(aliases_read(p->aliases, &a, e));
    const char *target = aliases_find(&a, text);
    *meant = mem_strdup(target ? target : text);
    aliases_close(&a);
    if (!*meant)
        return err_nomem(e, strlen(text), "a name");
    TRY(model_name_parse(out, *meant, p->endpoint, e));
    return ERR_OK;
}

/* ---- fetching in a process of its own --------------------------------------------------------------------------- */

static int fetch(const struct hub_places *p, const struct model_name *name, const char *text, bool no_sandbox)
{
    struct err e = {0};
    char path[HUB_PLACE_BYTES];
    struct pull_view view;
    err_code code = cli_confine_hub(HUB_FETCHES, no_sandbox, &e);
    if (code == ERR_OK) {
        const struct pull_options o = pull_view_begin(&view, p, PULL_RETRIES);
        struct pull *pull = NULL;
        fprintf(stderr, "%s is not here: fetching it\n", text);
        code = pull_open(&pull, name, text, &o, &e);
        if (code == ERR_OK)
            code = pull_run(pull, path, &e);
        pull_view_end();
        pull_close(&pull);
    }
    if (code != ERR_OK)
        fprintf(stderr, "moebius pull: %s\n", e.text);
    return code;
}

static err_code fetch_apart(const struct hub_places *p, const struct model_name *name, const char *text,
                            bool no_sandbox, struct err *e)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return err_set(e, ERR_FAIL, "%s: a process to fetch it: %s", text, strerror(errno));
    if (child == 0)
        _exit(fetch(p, name, text, no_sandbox));
    signal(SIGINT, SIG_IGN); /* the child reports an interrupt */
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return err_set(e, ERR_FAIL, "%s: the process that fetches it: %s", text, strerror(errno));
    signal(SIGINT, SIG_DFL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return ERR_OK;
    return err_set(e, WIFEXITED(status) ? (err_code)WEXITSTATUS(status) : ERR_FAIL, "%s: it could not be fetched",
                   text);
}

/* ---- names in commands ------------------------------------------------------------------------------------------ */

static bool is_offline(const struct option *options, int n_option)
{
    const struct option *o = options_find(options, n_option, "--offline", strlen("--offline"));
    return o && *(bool *)o->out;
}

/* How a command uses names of models. */
struct taker {
    bool is_off, no_sandbox, fetches_none;
};

/* Handles a model that was found by words of its path only. */
static void say_which(const struct model_name *name, const char *text, const char *path)
{
    char shown[PRINTABLE_FORMAT_BYTES];
    const char *file = strrchr(path, '/') + 1;
    (void)printable_line(file, strlen(file), shown, sizeof shown);
    fprintf(stderr, "%s: no model here is %s itself: taking %s (`moebius pull %s` looks for a better one)\n", text,
            name->what, shown, text);
}

static err_code find_or_fetch(struct hub_places *p, const struct model_name *name, const char *text,
                              const struct taker *t, char path[HUB_PLACE_BYTES], struct err *e)
{
    bool by_words;
    TRY(hub_cache_find(p, name, text, path, &by_words, e));
    if (by_words)
        say_which(name, text, path);
    if (*path)
        return ERR_OK;
    if (t->fetches_none)
        return err_set(e, ERR_USAGE, "%s: it is not here yet: moebius pull %s --plan-only plans for it", text, text);
    if (p->is_offline)
        return err_set(e, ERR_FAIL, "%s: it is not here, and the network is not to be used (HF_HUB_OFFLINE, --offline)",
                       text);
    TRY(fetch_apart(p, name, text, t->no_sandbox, e));
    TRY(hub_cache_find(p, name, text, path, &by_words, e));
    return *path ? ERR_OK : err_set(e, ERR_FAIL, "%s: it was fetched, and is gone", text);
}

/* The error for a word that is neither a file nor an alias, and does not look like a file's path. */
static err_code refuse(const char *word, struct err *e)
{
    return err_set(e, ERR_IO,
                   "%s: no file and no alias of that name; a model of the Hub is named "
                   "hf:OWNER/REPO:Q4_K_M (moebius list --known)",
                   word);
}

static bool is_file_name(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot && !strcmp(dot, ".gguf");
}

/* The path of a model that may be given by name. */
static err_code resolve(const char **word, const struct taker *t, struct err *e)
{
    struct stat st;
    struct hub_places p;
    struct model_name name;
    char *text = NULL, path[HUB_PLACE_BYTES] = "";
    bool is_remote = model_name_is_remote(*word);
    if (strcmp(*word, "-") == 0 || (!is_remote && (stat(*word, &st) == 0 || errno != ENOENT)))
        return ERR_OK;
    if (!is_remote && !alias_is_name(*word))
        return is_file_name(*word) ? ERR_OK : refuse(*word, e);
    err_code code = hub_places_find(&p, e);
    if (code != ERR_OK)
        return is_remote ? code : ERR_OK;
    p.is_offline |= t->is_off;
    code = model_names_parse(&p, *word, &name, &text, e);
    if (code == ERR_OK && name.kind != MODEL_NAME_FILE)
        code = find_or_fetch(&p, &name, text, t, path, e);
    else if (code == ERR_OK && strcmp(text, *word) == 0 && !is_file_name(text))
        code = refuse(text, e);
    else if (code == ERR_OK)
        snprintf(path, sizeof path, "%s", text);
    const char *kept = code == ERR_OK ? arena_strndup(&paths, path, strlen(path)) : NULL;
    if (kept)
        *word = kept;
    else if (code == ERR_OK)
        code = err_nomem(e, sizeof path, "a path");
    mem_free(text);
    return code;
}

err_code model_names_resolve(const struct command *c, const struct option *options, int n_option, int argc, char **argv,
                             bool no_sandbox, struct err *e)
{
    enum { N_OPERAND = sizeof c->operands / sizeof *c->operands };
    const struct taker t = {is_offline(options, n_option), no_sandbox, c->fetches_none};
    for (int i = 0; i < n_option; i++)
        if (options[i].kind == OPT_MODEL && *(const char **)options[i].out)
            TRY(resolve((const char **)options[i].out, &t, e));
    for (int i = 1; i < argc && i <= N_OPERAND; i++) {
        const char *word = argv[i];
        if (c->operands[i - 1] != OPT_MODEL)
            continue;
        TRY(resolve(&word, &t, e));
        argv[i] = (char *)word; /* commands don't write to their words */
    }
    return ERR_OK;
}
