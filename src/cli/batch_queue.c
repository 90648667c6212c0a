#include "cli/batch_queue.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/printable.h"

err_code batch_queue_open(struct batch_queue *q, struct err *e)
{
    q->lines = json_object();
    q->unknown = json_object();
    return q->lines && q->unknown ? ERR_OK : err_nomem(e, 0, "the requests' ids");
}

void batch_queue_close(struct batch_queue *q)
{
    line_reader_close(&q->in);
    batch_output_close(&q->out);
    json_decref(q->lines);
    json_decref(q->unknown);
    *q = (struct batch_queue){0};
}

/* ---- answers ------------------------------------------------------------------------------------------------- */

/* Writes a line and frees it. line NULL: there was no memory for it, which is the error. */
static err_code write_line(struct batch_queue *q, json_t *line, struct err *e)
{
    err_code code = line ? batch_output_write(&q->out, line, e) : err_nomem(e, 0, "an answer");
    json_decref(line);
    return code;
}

err_code batch_queue_answer(struct batch_queue *q, json_t *answer, struct err *e)
{
    TRY(write_line(q, answer, e));
    q->n_answered++;
    return ERR_OK;
}

err_code batch_queue_fail(struct batch_queue *q, const struct batch_request *r, const struct err *why, struct err *e)
{
    TRY(write_line(q,
                   json_pack("{s:O, s:I, s:s, s:s}", "id", r->id, "line", (json_int_t)r->line, "finish_reason", "error",
                             "error", why->text),
                   e));
    q->n_failed++;
    return ERR_OK;
}

int64_t batch_queue_n_done(const struct batch_queue *q)
{
    return q->n_before + q->n_answered + q->n_failed;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

/* Notes the line of a key. *first: the line that has the key already; 0: the key is new. */
static err_code note_key(struct batch_queue *q, const char *key, int64_t *first, struct err *e)
{
    *first = json_integer_value(json_object_get(q->lines, key));
    if (*first == 0 && json_object_set_new(q->lines, key, json_integer(q->line)) != 0)
        return err_nomem(e, 0, "the requests' ids");
    return ERR_OK;
}

static void warn_of(const char *name)
{
    char shown[64];
    printable_line(name, strlen(name), shown, sizeof shown);
    fprintf(stderr, "warning: unknown field \"%s\" in a request is ignored\n", shown);
}

/* Warns about unknown fields, once for each name. */
static void warn_of_names(struct batch_queue *q)
{
    const char *name;
    json_t *is_new;
    json_object_foreach(q->unknown, name, is_new)
    {
        if (json_is_true(is_new))
            warn_of(name);
        (void)json_object_set_new(q->unknown, name, json_false());
    }
}

static err_code parse_line(struct batch_queue *q, const struct line *line, struct batch_request *r, struct err *e)
{
    if (line->text)
        return batch_request_parse(r, &q->defaults, line->text, line->n, q->line, q->unknown, e);
    TRY(batch_request_number(r, q->line, e));
    return err_set(e, ERR_LIMIT, "expected a line of at most %zu bytes", q->in.max_bytes);
}

/* Decides on a request that was parsed, or could not be parsed (code). *is_wanted: it must be answered. */
static err_code sort_out(struct batch_queue *q, struct batch_request *r, err_code parsed, struct err *why,
                         bool *is_wanted, struct err *e)
{
    int64_t first = 0;
    char *key = batch_request_key(r->id);
    err_code code = key ? ERR_OK : err_nomem(e, 0, "a request's id");
    if (code == ERR_OK && json_is_object(r->json)) /* otherwise its number is its key, which may equal another's id */
        code = note_key(q, key, &first, e);
    if (code == ERR_OK && first)
        parsed = err_set(why, ERR_FORMAT, "the id %s is also that of line %lld", key, (long long)first);
    if (code == ERR_OK &&
        (batch_output_has_failure(&q->out, key, r->line) || (!first && batch_output_has_answer(&q->out, key))))
        q->n_before++;
    else if (code == ERR_OK && parsed != ERR_OK)
        code = batch_queue_fail(q, r, why, e);
    else
        *is_wanted = code == ERR_OK;
    mem_free(key);
    return code;
}

static err_code take_line(struct batch_queue *q, const struct line *line, struct batch_request *r, bool *is_wanted,
                          struct err *e)
{
    struct err why = {0};
    q->line++;
    if (line_is_blank(line))
        return ERR_OK;
    err_code code = parse_line(q, line, r, &why);
    warn_of_names(q);
    if (code == ERR_NOMEM)
        return err_set(e, code, "%s", why.text);
    return sort_out(q, r, code, &why, is_wanted, e);
}

err_code batch_queue_next(struct batch_queue *q, bool may_wait, struct batch_request *r, bool *is_there, struct err *e)
{
    struct line line;
    enum line_status status;
    *is_there = false;
    while (!*is_there && !q->is_read) {
        TRY(line_reader_next(&q->in, may_wait, &line, &status, e));
        q->is_read = status == LINE_NO_MORE;
        if (status != LINE_READ)
            return ERR_OK;
        err_code code = take_line(q, &line, r, is_there, e);
        if (!*is_there)
            batch_request_close(r);
        TRY(code);
    }
    return ERR_OK;
}
