#define _POSIX_C_SOURCE 200809L
#include "cli/eval_prompt.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/units_text.h"
#include "cli/interrupt.h"
#include "cli/say.h"

struct prompt_progress {
    size_t n; /* tokens of the prompt */
    int64_t start_ns, shown_ns;
};

static bool is_cancel_wanted(void *user)
{
    return cli_interrupted();
}

/* Shows progress after one second, in a line that is overwritten each time. */
static void show_prompt(void *user, double done)
{
    enum { FIRST_NS = 1000 * 1000 * 1000, EVERY_NS = 200 * 1000 * 1000 };
    struct prompt_progress *p = user;
    int64_t now = clock_ns();
    if (now - p->start_ns < FIRST_NS || now - p->shown_ns < EVERY_NS)
        return;
    double s = (double)(now - p->start_ns) / 1e9;
    say_progress("prompt of %zu tokens: %.0f%%%s%s%s", p->n, 100 * done, done > 0 ? ", " : "",
                 done > 0 ? units_duration(s / done - s).s : "", done > 0 ? " left" : "");
    p->shown_ns = now;
}

static void prompt_progress_begin(struct prompt_progress *p, const struct model_options *o, moebius_session *session,
                                  size_t n)
{
    *p = (struct prompt_progress){.n = n, .start_ns = clock_ns()};
    moebius_session_set_cancel(session, is_cancel_wanted, NULL);
    if (!o->quiet && isatty(STDERR_FILENO))
        moebius_session_set_progress(session, show_prompt, p);
}

static void prompt_progress_end(moebius_session *session)
{
    moebius_session_set_cancel(session, NULL, NULL);
    moebius_session_set_progress(session, NULL, NULL);
    say_progress_end();
}

err_code cli_eval_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                         struct err *e)
{
    moebius_error error;
    struct prompt_progress progress;
    prompt_progress_begin(&progress, o, session, n);
    moebius_status status = moebius_session_eval(session, ids, n, &error);
    prompt_progress_end(session);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}

err_code cli_sync_prompt(const struct model_options *o, moebius_session *session, const int32_t *ids, size_t n,
                         size_t *n_kept, struct err *e)
{
    moebius_error error;
    struct prompt_progress progress;
    prompt_progress_begin(&progress, o, session, n);
    moebius_status status = moebius_session_sync(session, ids, n, n_kept, &error);
    prompt_progress_end(session);
    return status == MOEBIUS_OK ? ERR_OK : err_adopt(e, &error);
}
