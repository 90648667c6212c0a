#define _POSIX_C_SOURCE 200809L
#include "cli/rank_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/output_file.h"

static moebius_ranks *ranks;

/* Ends the process at once: the run can't go on, and waiting for the other threads would take longer than the launcher
 * allows. */
static void end_now(void *user, const char *sentence)
{
    fprintf(stderr, "moebius: %s\n", sentence);
    fflush(stderr);
    output_files_remove();
    _exit(ERR_FAIL);
}

err_code rank_run_begin(struct err *e)
{
    moebius_error error;
    if (ranks || !moebius_ranks_are_wanted() || moebius_ranks_open(&ranks, end_now, NULL, &error) == MOEBIUS_OK)
        return ERR_OK;
    return err_adopt(e, &error);
}

bool rank_run_is_first(void)
{
    return !ranks || moebius_rank(ranks) == 0;
}

moebius_ranks *rank_run_ranks(void)
{
    return ranks;
}

/* Errors are reported by rank 0; each rank reports what concerns only itself. */
static void print_warning(void *user, enum moebius_log_level level, const char *line)
{
    if (level == MOEBIUS_LOG_WARN)
        fprintf(stderr, "rank %d: warning: %s\n", moebius_rank(ranks), line);
}

void rank_run_serve(const struct model_options *o)
{
    moebius_engine_options options;
    moebius_error error;
    struct dir_list store;
    struct err e;
    err_code code = cli_engine_options(o, &options, &store, &e);
    options.log = print_warning;
    if (code == ERR_OK)
        code = (err_code)moebius_ranks_serve(ranks, o->path, &options, &error);
    cli_dirs_close(&store);
    rank_run_end();
    exit(code);
}

void rank_run_end(void)
{
    moebius_ranks_close(&ranks);
}
