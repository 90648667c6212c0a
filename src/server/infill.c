#include "server/infill.h"

#include "base/mem.h"
#include "base/minmax.h"

enum {
    WINDOW_TOKENS = 2048, /* around the gap, a quarter of them behind it */
    FRAME_TOKENS = 32,    /* the marks, the token that begins a text, and names that nobody gave */
};

/* As llama.cpp's server calls what has no name. */
static const char project_name[] = "myproject\n", file_name[] = "filename\n",
                  snippet_line[] = "\n\n--- snippet ---\n\n";

struct tokens {
    int32_t *ids; /* [n]; owned (moebius_free) */
    size_t n;
};

static err_code read_text(struct tokens *t, const struct served_model *m, const char *text, size_t n, struct err *e)
{
    return n ? prompt_tokenize(m, text, n, false, &t->ids, &t->n, e) : ERR_OK;
}

static err_code add_mark(struct prompt *p, const struct served_model *m, moebius_fill fill, struct err *e)
{
    int32_t id = moebius_token_fill(m->vocab, fill);
    return id < 0 ? ERR_OK : prompt_add_ids(p, &id, 1, e);
}

/* A mark and a text; neither where the model has no such mark. */
static err_code add_named(struct prompt *p, const struct served_model *m, moebius_fill fill, const char *text, size_t n,
                          struct err *e)
{
    struct tokens name = {0};
    if (moebius_token_fill(m->vocab, fill) < 0)
        return ERR_OK;
    TRY(add_mark(p, m, fill, e));
    TRY(read_text(&name, m, text, n, e));
    err_code code = prompt_add_ids(p, name.ids, name.n, e);
    moebius_free(name.ids);
    return code;
}

/* ---- other files ----------------------------------------------------------------------------------------------- */

static err_code read_file(struct tokens *t, const struct served_model *m, const json_t *file, struct err *e)
{
    const json_t *text = json_object_get(file, "text");
    const char *name = json_string_value(json_object_get(file, "filename"));
    bool has_mark = moebius_token_fill(m->vocab, MOEBIUS_FILL_FILE) >= 0;
    struct bytes all = {0};
    if (has_mark) {
        bytes_put_text(&all, name ? name : "tmp");
        bytes_put_char(&all, '\n');
    } else {
        bytes_put_text(&all, snippet_line);
    }
    bytes_put(&all, json_string_value(text), json_string_length(text));
    err_code code = all.is_short ? err_nomem(e, json_string_length(text), "a file") : read_text(t, m, all.s, all.n, e);
    bytes_close(&all);
    return code;
}

static err_code add_files(struct prompt *p, const struct served_model *m, const struct tokens *files, size_t n,
                          struct err *e)
{
    if (n == 0)
        return ERR_OK;
    TRY(add_named(p, m, MOEBIUS_FILL_REPOSITORY, project_name, sizeof project_name - 1, e));
    for (size_t i = 0; i < n; i++) {
        TRY(add_mark(p, m, MOEBIUS_FILL_FILE, e));
        TRY(prompt_add_ids(p, files[i].ids, files[i].n, e));
    }
    return add_named(p, m, MOEBIUS_FILL_FILE, file_name, sizeof file_name - 1, e);
}

/* The last files that fit, in their order. */
static err_code add_extra(struct prompt *p, const struct served_model *m, const json_t *extra, size_t room,
                          struct err *e)
{
    size_t n = json_array_size(extra), first = n;
    struct tokens *files = mem_calloc(n + 1, sizeof *files);
    err_code code = files ? ERR_OK : err_nomem(e, n * sizeof *files, "files");
    while (code == ERR_OK && first > 0) {
        struct tokens *file = &files[first - 1];
        code = read_file(file, m, json_array_get(extra, first - 1), e);
        if (code != ERR_OK || file->n + 1 > room)
            break;
        room -= file->n + 1;
        first--;
    }
    if (code == ERR_OK)
        code = add_files(p, m, files + first, n - first, e);
    for (size_t i = 0; files && i < n; i++)
        moebius_free(files[i].ids);
    mem_free(files);
    return code;
}

/* ---- the gap --------------------------------------------------------------------------------------------------- */

/* Tokens that a prompt may have, beside an answer that takes at most half of the context. */
static size_t prompt_room(const struct served_model *m, const struct server_request *r)
{
    int64_t n_ctx = m->facts.n_ctx, n_answer = r->max_tokens < 0 ? n_ctx / 4 : min_i64(r->max_tokens, n_ctx / 2);
    return (size_t)max_i64(n_ctx - n_answer - FRAME_TOKENS, 0);
}

static err_code add_gap(struct prompt *p, const struct served_model *m, const struct server_request *r,
                        const struct tokens *before, const struct tokens *behind, struct err *e)
{
    size_t room = prompt_room(m, r), window = min_size(room, WINDOW_TOKENS);
    size_t n_behind = min_size(behind->n, window / 4), n_before = min_size(before->n, window - n_behind);
    int32_t bos = moebius_token_bos(m->vocab);
    if (moebius_vocab_adds_bos(m->vocab))
        TRY(prompt_add_ids(p, &bos, 1, e));
    TRY(add_extra(p, m, r->extra, room - n_behind - n_before, e));
    TRY(add_mark(p, m, MOEBIUS_FILL_PREFIX, e));
    TRY(prompt_add_ids(p, before->ids + before->n - n_before, n_before, e));
    TRY(add_mark(p, m, MOEBIUS_FILL_SUFFIX, e));
    TRY(prompt_add_ids(p, behind->ids, n_behind, e));
    return add_mark(p, m, MOEBIUS_FILL_MIDDLE, e);
}

err_code infill_make(struct prompt *p, const struct served_model *m, const struct server_request *r,
                     const json_t *before, struct err *e)
{
    struct tokens head = {0}, tail = {0};
    for (int fill = MOEBIUS_FILL_PREFIX; fill <= MOEBIUS_FILL_MIDDLE; fill++)
        if (moebius_token_fill(m->vocab, (moebius_fill)fill) < 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "suffix: the model's vocabulary has no marks for what is to be filled in: expected tokens "
                           "such as <|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>");
    err_code code = read_text(&head, m, json_string_value(before), json_string_length(before), e);
    if (code == ERR_OK)
        code = read_text(&tail, m, json_string_value(r->suffix), json_string_length(r->suffix), e);
    if (code == ERR_OK)
        code = add_gap(p, m, r, &head, &tail, e);
    moebius_free(head.ids);
    moebius_free(tail.ids);
    return code;
}
