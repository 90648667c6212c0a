#include "cli/open_model.h"

#include "base/clock.h"
#include "cli/progress.h"
#include "cli/run_plan.h"
#include "cli/say.h"

struct load_progress {
    struct progress shown;
    const struct model_options *options;
};

static void load_progress(void *user, uint64_t done, uint64_t total)
{
    struct load_progress *p = user;
    (void)cli_progress(&p->shown, done, total);
    if (p->options->loading)
        p->options->loading(p->options->loading_user, done, total);
}

/* Warns about a context that is longer than the one the model was trained with: it works, but not well. */
static void check_context(const struct model_options *o, const moebius_engine *engine)
{
    int64_t n_train = moebius_n_ctx_train(engine);
    if (o->n_ctx > n_train && n_train > 0)
        say(LOG_WARN, "--ctx %lld: the model was trained with %lld tokens, what it says beyond them may be of no use",
            (long long)o->n_ctx, (long long)n_train);
}

err_code cli_open_engine(const struct model_options *o, struct opened *out, struct err *e)
{
    moebius_engine_options options;
    moebius_error error;
    struct load_progress progress = {.options = o};
    struct dir_list store;
    err_code code = cli_engine_options(o, &options, &store, e);
    if (code == ERR_OK) {
        cli_progress_begin(&progress.shown, o->quiet ? NULL : "loading");
        options.progress = load_progress;
        options.user = &progress;
        if (moebius_engine_open(&out->engine, o->path, &options, &error) != MOEBIUS_OK)
            code = err_adopt(e, &error);
        say_progress_end();
        if (code != ERR_OK)
            run_plan_advise(o, NULL, o->n_ctx, e);
        out->load_ns = clock_ns() - progress.shown.start_ns;
        if (code == ERR_OK)
            check_context(o, out->engine);
    }
    cli_dirs_close(&store);
    return code;
}

err_code cli_open_session(const struct model_options *o, int64_t n_ctx, struct opened *out, struct err *e)
{
    moebius_error error;
    moebius_session_options options;
    TRY(cli_session_options(o, &options, e));
    options.n_ctx = n_ctx;
    if (moebius_session_open(&out->session, out->engine, &options, &error) == MOEBIUS_OK)
        return ERR_OK;
    err_adopt(e, &error);
    run_plan_advise(o, out->engine, n_ctx, e);
    return e->code;
}

err_code cli_context_size(const struct model_options *o, const moebius_engine *engine, const char *what,
                          int64_t n_prompt, int64_t n_more, int64_t *n_ctx, struct err *e)
{
    int64_t limit = o->n_ctx ? o->n_ctx : moebius_n_ctx_train(engine);
    if (n_prompt > limit)
        return err_set(e, ERR_LIMIT, "%s has %lld tokens, the context %lld: shorten it%s", what, (long long)n_prompt,
                       (long long)limit,
                       o->n_ctx ? " or raise --ctx" : ", or go beyond what the model was trained for with --ctx");
    *n_ctx = limit;
    if (!o->n_ctx && n_more >= 0 && n_prompt + n_more < limit)
        *n_ctx = n_prompt + n_more;
    return ERR_OK;
}

bool cli_has_stages(const moebius_engine *engine)
{
    moebius_device d;
    return moebius_engine_device(engine, 1, &d) && d.n_layer > 0;
}

void cli_close(struct opened *o)
{
    moebius_session_close(&o->session);
    moebius_engine_close(&o->engine);
}
