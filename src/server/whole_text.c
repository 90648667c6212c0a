#include "server/whole_text.h"

#include "base/json_text.h"
#include "base/utf8.h"

/* Drops what was taken. */
static void drop_given(struct whole_text *t)
{
    bytes_drop(&t->held, t->n_given);
    t->n_given = 0;
}

err_code whole_text_add(struct whole_text *t, const char *text, size_t n, struct err *e)
{
    drop_given(t);
    return bytes_add(&t->held, text, n, e);
}

err_code whole_text_take(struct whole_text *t, bool all, const char **text, size_t *n, struct err *e)
{
    drop_given(t);
    *text = t->held.s;
    *n = t->held.n;
    if (!all && *n)
        *n -= utf8_unfinished(t->held.s, t->held.n);
    t->n_given = *n;
    if (*n == 0 || utf8_valid(*text, *n) == *n)
        return ERR_OK;
    json_decref(t->repaired);
    t->repaired = json_text(*text, *n);
    if (!t->repaired)
        return err_nomem(e, *n, "a piece of text");
    *text = json_string_value(t->repaired);
    *n = json_string_length(t->repaired);
    return ERR_OK;
}

void whole_text_close(struct whole_text *t)
{
    bytes_close(&t->held);
    json_decref(t->repaired);
    *t = (struct whole_text){0};
}
