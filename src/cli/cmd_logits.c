#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/open_model.h"
#include "cli/prompt_options.h"
#include "cli/stats.h"

struct logits {
    struct model_options model;
    struct prompt_options prompt;
    const char *out, *positions, *routing;
    struct opened opened;
    int32_t *ids;
    size_t n_ids, first;
    struct output_file file, routing_file;
    int64_t n_routed;
};

static bool write_row(void *user, size_t i, const float *row)
{
    struct logits *l = user;
    size_t n = (size_t)moebius_n_vocab(l->opened.engine);
    return fwrite(row, sizeof *row, n, l->file.stream) == n;
}

/* One line a token and MoE layer: layer, position, then the experts, best first. */
static void write_routing(void *user, int moe_layer, int64_t n_tok, int64_t n_used, const int32_t *ids)
{
    struct logits *l = user;
    FILE *f = l->routing_file.stream;
    int64_t pos = moebius_session_pos(l->opened.session) + l->n_routed - n_tok;
    for (int64_t t = 0; t < n_tok; t++) {
        fprintf(f, "%d %lld", moe_layer, (long long)(pos + t));
        for (int64_t r = 0; r < n_used; r++)
            fprintf(f, " %d", (int)ids[t * n_used + r]);
        fprintf(f, "\n");
    }
}

static err_code parse_positions(struct logits *l, struct err *e)
{
    const char *p = l->positions;
    if (!p || !strcmp(p, "all"))
        return ERR_OK;
    char *end;
    long n = strncmp(p, "last:", 5) ? 0 : strtol(p + 5, &end, 10);
    if (n < 1 || *end)
        return err_set(e, ERR_USAGE, "--positions %s: expected all or last:N", p);
    l->first = (size_t)n < l->n_ids ? l->n_ids - (size_t)n : 0;
    return ERR_OK;
}

/* Evaluates the text in chunks, so that each line of routing has its position. */
static err_code compute(struct logits *l, struct err *e)
{
    moebius_error error;
    const moebius_trace trace = {.routed = write_routing, .user = l};
    if (l->routing)
        moebius_session_trace(l->opened.session, &trace);
    size_t batch = l->model.n_batch ? (size_t)(l->model.n_batch + 63) / 64 * 64 : 512;
    if (l->model.car.threshold > 0) /* token by token, as in generating: --car makes no difference to prompts */
        batch = 1;
    for (size_t i = 0; i < l->n_ids; i += batch) {
        size_t n = l->n_ids - i < batch ? l->n_ids - i : batch;
        l->n_routed = (int64_t)n;
        moebius_status status = moebius_session_eval_each(l->opened.session, l->ids + i, n,
                                                          l->first > i ? l->first - i : 0, write_row, l, &error);
        if (cli_interrupted())
            return err_set(e, ERR_CANCELLED, "interrupted after %zu of %zu tokens; no file is written", i, l->n_ids);
        if (status == MOEBIUS_CANCELLED)
            return output_file_finish(&l->file, e); /* a row could not be written; this reports why */
        if (status != MOEBIUS_OK)
            return err_adopt(e, &error);
    }
    return ERR_OK;
}

static err_code logits(struct logits *l, struct err *e)
{
    if (!l->out)
        return err_set(e, ERR_USAGE, "no output: name one with --out FILE.f32");
    TRY(cli_check_model(&l->model, e));
    TRY(cli_check_prompt(&l->prompt, e));
    TRY(output_file_check(l->out, e));
    TRY(output_file_check(l->routing, e));
    TRY(cli_open_engine(&l->model, &l->opened, e));
    TRY(cli_prompt(&l->prompt, moebius_engine_vocab(l->opened.engine), &l->ids, &l->n_ids, e));
    TRY(parse_positions(l, e));
    TRY(cli_open_session(&l->model, l->model.n_ctx ? l->model.n_ctx : (int64_t)l->n_ids + 1, &l->opened, e));
    TRY(output_file_open(&l->file, l->out, e));
    if (l->routing)
        TRY(output_file_open(&l->routing_file, l->routing, e));
    cli_catch_interrupt();
    TRY(compute(l, e));
    stats_print_car(l->opened.engine, stderr);
    if (l->routing)
        TRY(output_file_finish(&l->routing_file, e));
    return output_file_finish(&l->file, e);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct logits l = {0};
    const struct option options[] = {
        MODEL_OPTIONS(l.model),
        CAR_OPTIONS(l.model),
        PROMPT_OPTIONS(l.prompt),
        {"--out,-o", OPT_OUTPUT, &l.out, "FILE.f32", "output file: float32, little-endian, [positions][n_vocab]", 0, 0,
         0},
        {"--positions", OPT_STRING, &l.positions, "all|last:N", "write logits after these tokens (all)", 0, 0, 0},
        {"--routing", OPT_OUTPUT, &l.routing, "FILE", "write the chosen experts: lines of layer, position, ids", 0, 0,
         0},
        {"--ctx,-c", OPT_INT, &l.model.n_ctx, "N", "context in tokens (default: what is needed)", 1, 1 << 30, 0},
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK)
        code = logits(&l, &e);
    output_file_abandon(&l.file);
    output_file_abandon(&l.routing_file);
    cli_close(&l.opened);
    mem_free(l.ids);
    return cli_exit(c, code, &e);
}

const struct command cmd_logits = {
    .name = "logits",
    .usage = "-m FILE (--tokens 1,2,3 | -p TEXT | -f FILE) --out FILE.f32 [OPTIONS]",
    .summary = "write the logits of a text to a file",
    .hint = "a prompt is given with -p, and in quotes",
    .runs_model = true,
    .group = COMMAND_MEASURE,
    .run = run,
};
