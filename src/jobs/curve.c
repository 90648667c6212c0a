#include "jobs/curve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct curve {
    const struct trace *trace;
    const char *only;
};

static double percent(const struct replay *r)
{
    return 100 * (double)r->n_hit / (double)r->n_all;
}

/* One line; a budget below the minimum says so. */
static err_code print_line(const struct curve *c, double share, struct err *e)
{
    struct replay r;
    double first = 0, best;
    err_code code = trace_replay_best(c->trace, share, &r, e);
    if (code == ERR_LIMIT) {
        printf("%6.1f%%  too little: %s\n", 100 * share, e->text);
        return ERR_OK;
    }
    TRY(code);
    best = percent(&r);
    printf("%6.1f%%", 100 * share);
    double read_bytes = 0;
    for (int k = POLICY_N_KIND; k-- > 0;) { /* the default comes last */
        if (c->only && strcmp(c->only, policy_name((enum policy_kind)k)) != 0)
            continue;
        TRY(trace_replay(c->trace, (enum policy_kind)k, share, &r, e));
        printf(" %7.2f%%", percent(&r));
        first = percent(&r);
        read_bytes = (double)r.n_missed_bytes / (double)c->trace->n_tok;
    }
    printf(" %7.2f%% %7.2f %11.2f\n", best, best - first, read_bytes / 1e6);
    return ERR_OK;
}

/* The next percentage of a list, as a share; 0: there is none, or none that makes sense. */
static double next_share(const char **list)
{
    char *end;
    errno = 0;
    double share = strtod(*list, &end) / 100;
    bool is_good = end != *list && !errno && share > 0 && share <= 1 && (!*end || *end == ',');
    *list = *end ? end + 1 : end;
    return is_good ? share : 0;
}

err_code curve_check_budgets(const char *budgets, struct err *e)
{
    const char *p = budgets;
    do {
        if (!(next_share(&p) > 0))
            return err_set(e, ERR_USAGE, "--budgets %s: expected percentages such as 15,25,50", budgets);
    } while (*p);
    return ERR_OK;
}

err_code curve_print(const struct trace *t, const char *only, const char *budgets, struct err *e)
{
    const struct curve c = {t, only};
    printf("hits, in %% of choices\n budget");
    for (int k = POLICY_N_KIND; k-- > 0;)
        if (!only || !strcmp(only, policy_name((enum policy_kind)k)))
            printf(" %8s", policy_name((enum policy_kind)k));
    printf(" %8s %7s %11s\n", "optimum", "gap", "MB/token");
    const char *p = budgets ? budgets : "10,15,25,35,50,65,75,90";
    while (*p)
        TRY(print_line(&c, next_share(&p), e));
    return ERR_OK;
}
