#include "cli/batch_run.h"

#include "base/mem.h"
#include "cli/interrupt.h"

/* ---- texts ---------------------------------------------------------------------------------------------------- */

static void enter(struct batch *b, struct batch_text *t)
{
    t->batch = b;
    t->next = b->open;
    if (b->open)
        b->open->prev = t;
    b->open = t;
    b->n_open++;
}

static void leave(struct batch_text *t)
{
    struct batch *b = t->batch;
    if (t->next)
        t->next->prev = t->prev;
    *(t->prev ? &t->prev->next : &b->open) = t->next;
    b->n_open--;
    batch_text_close(t);
}

/* A text that is too long for the memory is answered with an error. If the system is out of memory, or something else
 * is wrong, the whole run ends. */
static err_code write_end(struct batch_text *t, const struct text_result *r, struct err *e)
{
    struct batch_queue *q = &t->batch->queue;
    if (r->end == TEXT_END_CANCELLED)
        return ERR_OK;
    if (r->end == TEXT_END_FAILED && r->error->code == ERR_LIMIT)
        return batch_queue_fail(q, &t->request, r->error, e);
    if (r->end == TEXT_END_FAILED || t->error.code != ERR_OK) {
        *e = r->end == TEXT_END_FAILED ? *r->error : t->error;
        return e->code;
    }
    return batch_queue_answer(q, batch_text_answer(t, r), e);
}

static void on_end(void *user, const struct text_result *result)
{
    struct batch_text *t = user;
    struct batch *b = t->batch;
    if (b->error.code == ERR_OK)
        (void)!write_end(t, result, &b->error);
    leave(t);
}

/* Begins a text, or answers the request with the reason why that is not possible. */
static err_code take_request(struct batch *b, struct batch_request *r, struct err *e)
{
    struct err why = {0};
    struct batch_text *t = mem_calloc(1, sizeof *t);
    if (!t) {
        batch_request_close(r);
        return err_nomem(e, sizeof *t, "a text");
    }
    t->request = *r;
    enter(b, t);
    err_code code = batch_text_submit(t, b->texts, &b->setup, on_end, &why);
    if (code == ERR_OK)
        return ERR_OK;
    code = code == ERR_NOMEM ? err_set(e, code, "%s", why.text) : batch_queue_fail(&b->queue, &t->request, &why, e);
    leave(t);
    return code;
}

/* Begins texts until as many are running as are wanted at once. */
static err_code take_requests(struct batch *b, struct err *e)
{
    while (b->n_open < b->n_texts) {
        struct batch_request r = {0};
        bool is_there;
        TRY(batch_queue_next(&b->queue, b->n_open == 0, &r, &is_there, e));
        if (!is_there)
            return ERR_OK;
        TRY(take_request(b, &r, e));
    }
    return ERR_OK;
}

/* ---- the run -------------------------------------------------------------------------------------------------- */

static bool is_interrupted(void *user)
{
    return cli_interrupted();
}

static err_code open_run(struct batch *b, struct err *e)
{
    const struct model_options *m = b->setup.model;
    struct texts_options options = {.n_texts = b->n_texts,
                                    .n_ctx = m->n_ctx,
                                    .n_batch = m->n_batch,
                                    .n_draft = m->n_draft,
                                    .max_stall_ns = -1,
                                    .is_interrupted = is_interrupted};
    TRY(cli_session_options(m, &options.session, e));
    TRY(texts_open(&b->texts, b->setup.engine, &options, e));
    return batch_queue_open(&b->queue, e);
}

err_code batch_run(struct batch *b, struct err *e)
{
    bool is_idle;
    TRY(open_run(b, e));
    for (;;) {
        if (cli_interrupted())
            return err_set(e, ERR_CANCELLED, "interrupted");
        TRY(take_requests(b, e));
        if (b->n_open == 0 && b->queue.is_read)
            return ERR_OK;
        TRY(texts_step(b->texts, &is_idle, e));
        if (b->error.code != ERR_OK)
            return err_set(e, b->error.code, "%s", b->error.text);
        b->progress(b->user);
    }
}

struct texts_stats batch_stats(const struct batch *b)
{
    return b->texts ? texts_stats(b->texts) : (struct texts_stats){0};
}

void batch_close(struct batch *b)
{
    texts_close(&b->texts);
    batch_queue_close(&b->queue);
}
