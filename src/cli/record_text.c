#include "cli/record_text.h"

#include "base/mem.h"
#include "cli/interrupt.h"
#include "cli/prompt_options.h"
#include "cli/say.h"

static bool print_progress(void *user, size_t n_done)
{
    const size_t *n = user;
    say_progress("%zu of %zu tokens ", n_done, *n);
    return !cli_interrupted();
}

err_code record_text(const struct model_options *model, const char *file, int64_t n_most, struct opened *opened,
                     struct profile *profile, size_t *n, struct err *e)
{
    int32_t *ids = NULL;
    TRY(cli_open_engine(model, opened, e));
    TRY(cli_read_tokens(file, moebius_engine_vocab(opened->engine), &ids, n, e));
    if (n_most && (size_t)n_most < *n)
        *n = (size_t)n_most;
    err_code code = cli_open_session(model, model->n_ctx, opened, e);
    if (code == ERR_OK) {
        const struct profile_params params = {.n_ctx = (size_t)model->n_ctx, .progress = print_progress, .user = n};
        cli_catch_interrupt();
        code = profile_record(opened->engine, opened->session, ids, *n, &params, profile, e);
        say_progress_end();
    }
    mem_free(ids);
    return code;
}
