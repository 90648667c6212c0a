/* pull: downloads a model. Its header is inspected before the rest is downloaded. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/model_names.h"
#include "cli/pull_view.h"
#include "cli/run_plan.h"
#include "cli/say.h"
#include "jobs/inspect.h"

struct pull_command {
    bool plan_only, unchecked, no_sandbox;
    bool is_refused;    /* the plan says that the model can't run here */
    moebius_plan *plan; /* NULL: no plan could be made */
    int64_t n_retry;
    struct hub_places places;
    struct pull *pull;
    char scratch[HUB_PLACE_BYTES]; /* a folder for stand-ins of the files; "": there is none */
};

/* ---- the beginnings of files ------------------------------------------------------------------------------------ */

static bool scratch_path(const struct pull_command *j, int i, char path[HUB_PLACE_BYTES])
{
    return (size_t)snprintf(path, HUB_PLACE_BYTES, "%s/%s", j->scratch, pull_file_name(j->pull, i)) < HUB_PLACE_BYTES;
}

static err_code open_scratch(struct pull_command *j, struct err *e)
{
    const char *folder = *j->places.cache ? j->places.cache : j->places.downloads;
    if ((size_t)snprintf(j->scratch, sizeof j->scratch, "%s/.plan-XXXXXX", folder) >= sizeof j->scratch ||
        !mkdtemp(j->scratch)) {
        j->scratch[0] = '\0';
        return err_set(e, ERR_IO, "%s: a folder in it: %s", folder, strerror(errno));
    }
    return ERR_OK;
}

static void close_scratch(struct pull_command *j)
{
    char path[HUB_PLACE_BYTES];
    for (int i = 0; *j->scratch && i < pull_n_files(j->pull); i++)
        if (scratch_path(j, i, path))
            (void)unlink(path);
    if (*j->scratch)
        (void)rmdir(j->scratch);
    j->scratch[0] = '\0';
}

static err_code copy_bytes(int from, int to, uint64_t n, struct err *e)
{
    enum { STEP = 1 << 20 };
    char *buf = mem_alloc(STEP);
    err_code code = buf ? ERR_OK : err_nomem(e, STEP, "a copy");
    for (uint64_t at = 0; code == ERR_OK && at < n;) {
        ssize_t got = pread(from, buf, (size_t)min_i64(STEP, (int64_t)(n - at)), (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            code = err_set(e, ERR_IO, "the beginning of the model: %s", got < 0 ? strerror(errno) : "became shorter");
        else if (got > 0 && !file_write_at(to, buf, (size_t)got, at))
            code = err_set(e, ERR_IO, "a copy of the model's beginning: %s", strerror(errno));
        at += got > 0 ? (uint64_t)got : 0;
    }
    mem_free(buf);
    return code;
}

/* Creates a stand-in: a file of the model's size with its first n bytes and a hole for the rest. */
static err_code make_stand_in(struct pull_command *j, int i, uint64_t n, struct err *e)
{
    char from[HUB_PLACE_BYTES], to[HUB_PLACE_BYTES];
    TRY(pull_beginning(j->pull, i, n, from, e));
    if (!scratch_path(j, i, to))
        return err_set(e, ERR_USAGE, "%s: longer than paths may be", j->scratch);
    int in = file_open(from, O_RDONLY, 0), out = file_open(to, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    err_code code = ERR_OK;
    if (in < 0 || out < 0 || ftruncate(out, (off_t)pull_file_bytes(j->pull, i)) != 0)
        code = err_set(e, ERR_IO, "%s: %s", in < 0 ? from : to, strerror(errno));
    else
        code = copy_bytes(in, out, n, e);
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return code;
}

static bool is_gguf(const struct pull_command *j)
{
    char path[HUB_PLACE_BYTES], magic[4] = "";
    int fd = scratch_path(j, 0, path) ? file_open(path, O_RDONLY, 0) : -1;
    bool is_it = fd >= 0 && pread(fd, magic, 4, 0) == 4 && memcmp(magic, "GGUF", 4) == 0;
    if (fd >= 0)
        close(fd);
    return is_it;
}

/* The output of `moebius inspect`, owned by the caller (free). must_run: fails if this build can't run the model. */
static err_code describe(const struct pull_command *j, bool must_run, char **text, struct err *e)
{
    char path[HUB_PLACE_BYTES];
    size_t n;
    const struct inspect_params params = {.must_run = must_run};
    *text = NULL;
    FILE *out = open_memstream(text, &n);
    if (!out)
        return err_nomem(e, BUFSIZ, "a description");
    err_code code = scratch_path(j, 0, path) ? inspect_print(out, path, &params, e)
                                             : err_set(e, ERR_USAGE, "%s: longer than paths may be", j->scratch);
    fclose(out);
    return code;
}

/* Removes the stand-in's folder from paths in a text. */
static void forget_scratch(const struct pull_command *j, char *text)
{
    size_t n = strlen(j->scratch) + 1;
    for (char *p = *j->scratch && text ? strstr(text, j->scratch) : NULL; p; p = strstr(p, j->scratch))
        memmove(p, p + n, strlen(p + n) + 1);
}

/* Makes a plan with the context of a chat. */
static void make_plan(struct pull_command *j)
{
    const moebius_plan_options o = {.n_ctx_most = INT64_MAX, .n_depth = RUN_PLAN_DEPTH, .usage = "", .receipts = ""};
    char path[HUB_PLACE_BYTES];
    moebius_error error;
    say_progress_end();
    if (!scratch_path(j, 0, path) || moebius_plan_open(&j->plan, path, &o, &error) == MOEBIUS_OK)
        return;
    forget_scratch(j, error.text);
    fprintf(stderr, "no plan of it can be made: %s\n", error.text);
}

/* How long the files' headers are is not known beforehand: more and more of the first file, which has the vocabulary,
 * is downloaded until they can be read. */
static err_code look(struct pull_command *j, char **text, struct err *e)
{
    enum { FIRST_BYTES = 4 << 20, MOST_BYTES = 256 << 20 };
    err_code code = open_scratch(j, e);
    for (uint64_t n = FIRST_BYTES; code == ERR_OK; n *= 2) {
        uint64_t n_first = pull_file_bytes(j->pull, 0);
        for (int i = 0; code == ERR_OK && i < pull_n_files(j->pull); i++) {
            uint64_t wanted = i == 0 ? n : FIRST_BYTES, all = pull_file_bytes(j->pull, i);
            if (i == 0 || n == FIRST_BYTES)
                code = make_stand_in(j, i, wanted < all ? wanted : all, e);
        }
        if (code != ERR_OK)
            break;
        if (!is_gguf(j)) {
            code = err_set(e, ERR_FORMAT, "%s: is no GGUF file", pull_file_name(j->pull, 0));
            break;
        }
        code = describe(j, false, text, e);
        bool is_last = code == ERR_OK || code == ERR_NOMEM || n >= n_first || n >= MOST_BYTES;
        if (code == ERR_OK) {
            free(*text);
            code = describe(j, true, text, e);
            if (code == ERR_OK)
                make_plan(j);
        }
        if (is_last)
            break;
        free(*text);
        *text = NULL;
        code = ERR_OK;
    }
    forget_scratch(j, *text);
    forget_scratch(j, e->text);
    close_scratch(j);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static void print_fit(const struct pull_command *j, const char *text, const char *folder)
{
    struct statvfs fs;
    const double all = (double)pull_bytes(j->pull), here = (double)pull_there_bytes(j->pull);
    int n = pull_n_files(j->pull);
    fprintf(stderr, "%s: %.2f GB in %d file%s, %.2f GB of it here", text, all / 1e9, n, n > 1 ? "s" : "", here / 1e9);
    if (statvfs(folder, &fs) == 0)
        fprintf(stderr, "; %.2f GB are free in %s", (double)fs.f_bavail * (double)fs.f_frsize / 1e9, folder);
    fprintf(stderr, "\n");
}

/* Prints the plan: in full if only that was asked for, else in one line. */
static void print_plan(struct pull_command *j)
{
    const char *way;
    if (!j->plan)
        return;
    j->is_refused = moebius_plan_is_refused(j->plan);
    if (j->plan_only) {
        printf("\n%s", moebius_plan_text(j->plan));
        return;
    }
    fprintf(stderr, "plan: %s\n", moebius_plan_line(j->plan));
    if (!j->is_refused)
        return;
    fprintf(stderr, "moebius pull: refused: %s (--unchecked fetches it anyway)\nwhat would work:\n",
            moebius_plan_refusal(j->plan));
    for (int i = 0; (way = moebius_plan_nearest(j->plan, i)); i++)
        fprintf(stderr, "  %s\n", way);
}

static err_code fetch(struct pull_command *j, const struct model_name *name, const char *text,
                      const struct pull_options *o, struct err *e)
{
    char path[HUB_PLACE_BYTES], *description = NULL;
    TRY(pull_open(&j->pull, name, text, o, e));
    print_fit(j, text, name->kind == MODEL_NAME_HUB ? j->places.cache : j->places.downloads);
    if (!j->unchecked) {
        err_code code = look(j, &description, e);
        if (code == ERR_OK && j->plan_only)
            fputs(description, stdout);
        free(description);
        if (code == ERR_FORMAT || code == ERR_UNSUPPORTED)
            err_prefix(e, "this build can't run it (--unchecked fetches it anyway)");
        TRY(code);
        print_plan(j);
    }
    if (j->plan_only || j->is_refused)
        return ERR_OK;
    TRY(pull_run(j->pull, path, e));
    printf("%s\n", path);
    return ERR_OK;
}

static err_code pull(struct pull_command *j, const char *word, struct err *e)
{
    char *text = NULL;
    struct model_name name;
    struct pull_view view;
    err_code code = model_names_parse(&j->places, word, &name, &text, e);
    if (code == ERR_OK && name.kind == MODEL_NAME_FILE)
        code = err_set(e, ERR_USAGE, "%s: expected hf:OWNER/REPO, hf:OWNER/REPO:WHAT, an address or an alias", word);
    if (code == ERR_OK) {
        const struct pull_options o = pull_view_begin(&view, &j->places, (int)j->n_retry);
        code = fetch(j, &name, text, &o, e);
        pull_view_end();
    }
    moebius_plan_close(&j->plan);
    pull_close(&j->pull);
    mem_free(text);
    return code;
}

static int run(const struct command *c, int argc, char **argv)
{
    struct pull_command j = {.n_retry = PULL_RETRIES};
    const struct option options[] = {
        {"--plan-only", OPT_FLAG, &j.plan_only, "", "show the model and its plan without downloading it", 0, 0, 0},
        {"--unchecked", OPT_FLAG, &j.unchecked, "", "skip the check whether the model can run here", 0, 0, 0},
        {"--retries", OPT_INT, &j.n_retry, "N", "attempts without progress before giving up (8)", 0, 1000, 0},
        SANDBOX_OPTION(j.no_sandbox),
    };
    struct err e = {0};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && argc != 2)
        code = err_set(&e, ERR_USAGE, "no model: expected hf:OWNER/REPO:WHAT, or an address");
    if (code == ERR_OK && j.plan_only && j.unchecked)
        code = err_set(&e, ERR_USAGE, "--plan-only looks, --unchecked does not: expected one of them");
    if (code == ERR_OK)
        code = hub_places_find(&j.places, &e); /* before the sandbox, which does not let the token be read */
    if (code == ERR_OK)
        code = cli_confine(c, options, N_OPTIONS(options), argc, argv, NULL, &e);
    if (code == ERR_OK)
        code = pull(&j, argv[1], &e);
    int exit_code = cli_exit(c, code, &e);
    return exit_code == ERR_OK && j.is_refused ? EXIT_REFUSED : exit_code;
}

const struct command cmd_pull = {
    .name = "pull",
    .usage = "NAME [--plan-only]",
    .summary = "download and verify a model",
    .details =
        "NAME is hf:OWNER/REPO:WHAT on the Hub (WHAT: Q4_K_M, or a file), the address of a .gguf file, or an alias. "
        "The model goes to the Hub's standard cache, and its path is printed. The first megabytes are fetched first, "
        "to check whether and how the model can run here (moebius plan); if it cannot, the exit status is 20. Run the "
        "same command again to resume an interrupted download. See docs/pull.md.",
    .max_operand = 1,
    .hub = HUB_FETCHES,
    .group = COMMAND_MODELS,
    .run = run,
};
