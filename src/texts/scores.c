#include "texts/scores.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

static size_t row_length(const struct scores *s)
{
    return 1 + (size_t)s->n_top;
}

err_code scores_open(struct scores *s, const int32_t *ids, size_t n_tok, int n_top, int32_t n_vocab, struct err *e)
{
    *s = (struct scores){.n_tok = n_tok, .n = 1, .n_top = n_top, .n_vocab = n_vocab};
    s->rows = mem_calloc(n_tok * row_length(s), sizeof *s->rows);
    if (!s->rows)
        return err_nomem(e, n_tok * row_length(s) * sizeof *s->rows, "log-probabilities");
    for (size_t i = 0; i < n_tok; i++)
        s->rows[i * row_length(s)].id = ids[i];
    s->rows[0].logprob = NAN;
    for (int i = 1; i <= n_top; i++)
        s->rows[i] = (moebius_logprob){.id = -1, .logprob = -INFINITY};
    return ERR_OK;
}

void scores_close(struct scores *s)
{
    mem_free(s->rows);
    *s = (struct scores){0};
}

bool scores_are_missing(const struct scores *s)
{
    return s->n < s->n_tok;
}

void scores_add(struct scores *s, const float *logits)
{
    if (!scores_are_missing(s))
        return;
    moebius_logprob *row = s->rows + s->n++ * row_length(s);
    row->logprob = moebius_logprobs(logits, s->n_vocab, row->id, row + 1, s->n_top);
}

size_t scores_usable(const struct scores *s, const struct scores *other, size_t n_known, size_t n)
{
    if (!scores_are_missing(s))
        return n;
    n_known = other->n_top >= s->n_top ? min_size(n_known, n) : 0;
    return min_size(n, max_size(n_known, s->n) - 1);
}

void scores_take(struct scores *s, const struct scores *other, size_t n)
{
    for (; s->n < n && scores_are_missing(s); s->n++) {
        const moebius_logprob *row = other->rows + s->n * row_length(other);
        assert(s->n < other->n && row->id == s->rows[s->n * row_length(s)].id);
        memcpy(s->rows + s->n * row_length(s), row, row_length(s) * sizeof *row);
    }
}

bool scores_cover(const struct scores *a, const struct scores *b)
{
    return b->n <= 1 || (a->n >= b->n && a->n_top >= b->n_top);
}
