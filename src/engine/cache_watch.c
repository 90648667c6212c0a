#include "engine/cache_watch.h"

/* When trials are. Blocks of passes without and with the cache alternate, so that both ways see the same text. The
 * first trial waits until hot experts are in the cache; while the cache is not used, experts begin to move again so
 * long before each trial. All but n_block count passes. */
struct schedule {
    int64_t first;   /* passes before a period's trial */
    int64_t n_block; /* blocks of a trial */
    int64_t block;   /* passes of a block */
    int64_t period;  /* passes from one trial to the next */
};
static const struct schedule schedules[CACHE_WATCH_N_KIND] = {
    [CACHE_WATCH_DECODE] = {64, 8, 4, 1024}, [CACHE_WATCH_PROMPT] = {2, 4, 1, 64}};

/* Slots lose when passes without them are faster by a thirtieth: less is noise. */
enum { GAIN_SHARE = 30, MOVE_SHARE = 16, MOST_MOVES = 16 };

/* The place of a kind's next pass in a trial; less than 0: there is no trial now. */
static int64_t trial_at(const struct cache_watch *w, enum cache_watch_kind kind)
{
    const struct schedule *s = &schedules[kind];
    int64_t at = w->trials[kind].n_pass % s->period - s->first;
    return at < s->n_block * s->block ? at : -1;
}

bool cache_watch_begin(struct cache_watch *w, int64_t n_tok)
{
    w->kind = n_tok <= CACHE_WATCH_FEW_TOK ? CACHE_WATCH_DECODE : CACHE_WATCH_PROMPT;
    w->n_tok = n_tok;
    int64_t at = trial_at(w, w->kind);
    w->is_tried = at >= 0 && !w->is_fixed;
    w->is_used = w->is_tried ? at / schedules[w->kind].block % 2 == 1 : !w->trials[w->kind].loses;
    return w->is_used;
}

static bool is_faster_without(const struct cache_trial *t)
{
    double without = t->n_ns[0] / t->n_tok[0], with = t->n_ns[1] / t->n_tok[1];
    return without < with - with / GAIN_SHARE;
}

void cache_watch_end(struct cache_watch *w, int64_t n_ns)
{
    const struct schedule *s = &schedules[w->kind];
    struct cache_trial *t = &w->trials[w->kind];
    int64_t at = trial_at(w, w->kind);
    if (w->is_tried && at == 0)
        t->n_ns[0] = t->n_ns[1] = t->n_tok[0] = t->n_tok[1] = 0;
    if (w->is_tried) {
        t->n_ns[w->is_used] += (double)n_ns;
        t->n_tok[w->is_used] += (double)w->n_tok;
    }
    if (w->is_tried && at == s->n_block * s->block - 1)
        t->loses = is_faster_without(t);
    t->n_pass++;
    if (w->kind == CACHE_WATCH_DECODE)
        w->credit_ns += (double)n_ns / MOVE_SHARE;
    if (w->credit_ns > MOST_MOVES * w->move_ns && w->move_ns > 0)
        w->credit_ns = MOST_MOVES * w->move_ns;
}

/* Whether slots should have what is hot: they are used, or soon tried. */
static bool is_kept_up(const struct cache_watch *w)
{
    const struct cache_trial *t = &w->trials[CACHE_WATCH_DECODE];
    int64_t at = trial_at(w, CACHE_WATCH_DECODE);
    return w->is_tried ? w->is_used : !t->loses || (at < 0 && t->n_pass % schedules[0].period < schedules[0].first);
}

bool cache_watch_may_move(const struct cache_watch *w)
{
    return !w->is_fixed && w->kind == CACHE_WATCH_DECODE && w->credit_ns > 0 && w->credit_ns >= w->move_ns &&
           is_kept_up(w);
}

void cache_watch_moved(struct cache_watch *w, int64_t n_ns)
{
    w->credit_ns -= (double)n_ns;
    w->move_ns = w->move_ns > 0 ? (3 * w->move_ns + (double)n_ns) / 4 : (double)n_ns;
    if (w->is_tried)
        w->trials[w->kind].n_ns[w->is_used] += (double)n_ns;
}
