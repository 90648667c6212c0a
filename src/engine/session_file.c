/* Sessions to files and back, whole or in parts. Nothing of a file is believed before its checksum was right. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/output_file.h"
#include "engine/saved_file.h"

enum { PIECE_BYTES = 1 << 16 };

/* ---- saving -------------------------------------------------------------------------------------------------- */

struct writer {
    FILE *stream;
    const char *path;
    uint32_t crc;
};

static err_code put(void *user, void *bytes, size_t n, struct err *e)
{
    struct writer *w = user;
    w->crc = crc32c(w->crc, bytes, n);
    return fwrite(bytes, 1, n, w->stream) == n ? ERR_OK : err_set(e, ERR_IO, "%s: %s", w->path, strerror(errno));
}

static err_code write_part(moebius_session *s, int64_t from, int64_t to, struct writer *w, struct err *e)
{
    struct saved_header h;
    TRY(saved_make_header(s, from, to, &h, e));
    TRY(put(w, &h, sizeof h, e));
    TRY(put(w, s->ids, (size_t)to * sizeof *s->ids, e));
    if (h.n_logits)
        TRY(put(w, s->logits, (size_t)h.n_logits * sizeof *s->logits, e));
    TRY(model_state_save(s->state, from, to, put, w, e));
    uint32_t crc = w->crc;
    return put(w, &crc, sizeof crc, e);
}

static err_code save(moebius_session *s, int64_t from, int64_t to, const char *path,
                     err_code (*finish)(struct output_file *f, struct err *e), struct err *e)
{
    struct output_file f = {0};
    err_code code = output_file_open(&f, path, e);
    struct writer w = {.stream = f.stream, .path = path};
    if (code == ERR_OK)
        code = write_part(s, from, to, &w, e);
    if (code == ERR_OK)
        code = finish(&f, e);
    output_file_abandon(&f);
    return code;
}

err_code session_save(moebius_session *s, const char *path, struct err *e)
{
    TRY(session_unpark(s, e));
    return save(s, 0, model_state_pos(s->state), path, output_file_finish, e);
}

moebius_status moebius_session_save(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(session_save(session, path, &e), &e, error);
}

int64_t moebius_session_part_end(const moebius_session *session, int64_t from, int64_t to)
{
    int64_t pos = moebius_session_pos(session);
    return to >= pos || session->parked.is_parked ? pos : model_state_save_end(session->state, from, to < 0 ? 0 : to);
}

int64_t moebius_session_part_bytes(const moebius_session *session, int64_t from, int64_t to)
{
    const moebius_session *s = session;
    uint64_t n_logits = s->last && to == moebius_session_pos(s) ? (uint64_t)s->engine->model->n_vocab : 0;
    return (int64_t)saved_bytes(s, (uint64_t)from, (uint64_t)to, n_logits);
}

static err_code save_part(moebius_session *s, int64_t from, int64_t to, const char *path, struct err *e)
{
    int64_t pos = moebius_session_pos(s);
    if (from < 0 || from >= to || to > pos)
        return err_set(e, ERR_USAGE, "a part from token %lld to %lld of a session of %lld: expected a range of these",
                       (long long)from, (long long)to, (long long)pos);
    TRY(session_unpark(s, e));
    int64_t end = model_state_save_end(s->state, from, to);
    if (end != to)
        return err_set(e, ERR_USAGE, "a part that ends at token %lld: the session's state is known at %lld",
                       (long long)to, (long long)end);
    return save(s, from, to, path, output_file_finish_unsynced, e);
}

moebius_status moebius_session_save_part(moebius_session *session, int64_t from, int64_t to, const char *path,
                                         moebius_error *error)
{
    struct err e = {0};
    return engine_status(save_part(session, from, to, path, &e), &e, error);
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

static err_code get(void *user, void *bytes, size_t n, struct err *e)
{
    return saved_get(user, bytes, n, e);
}

/* Room for a file's tokens and the logits behind them. Owned by the caller (mem_free). */
static err_code make_room(const struct saved_header *h, int32_t **out, struct err *e)
{
    size_t n = (size_t)h->n_tok * sizeof(int32_t) + h->n_logits * sizeof(float);
    *out = mem_alloc(n ? n : 1);
    return *out ? ERR_OK : err_nomem(e, n, "a session's tokens");
}

/* Reads from the tokens to the end, and begins again behind the header. */
static err_code check_contents(struct saved_reader *r, const struct saved_header *h, struct err *e)
{
    struct saved_header again;
    int32_t *ids;
    char *piece = mem_alloc(PIECE_BYTES);
    if (!piece)
        return err_nomem(e, PIECE_BYTES, "reading a session");
    err_code code = make_room(h, &ids, e);
    if (code == ERR_OK)
        code = saved_get_ids(r, h, ids, e);
    uint64_t left = h->n_bytes - sizeof *h - h->n_tok * sizeof *ids - sizeof(uint32_t);
    for (size_t n; left > 0 && code == ERR_OK; left -= n) {
        n = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        code = saved_get(r, piece, n, e);
    }
    mem_free(ids);
    mem_free(piece);
    TRY(code);
    TRY(saved_get_crc(r, e));
    rewind(r->stream);
    r->crc = 0;
    return saved_get(r, &again, sizeof again, e);
}

/* Whether the file's first n tokens are the session's. */
static err_code check_same(const moebius_session *s, const struct saved_reader *r, const int32_t *ids, uint64_t n,
                           struct err *e)
{
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] != s->ids[i])
            return err_set(e, ERR_USAGE, "%s: of another text: its token %llu is %d, the session's %d", r->path,
                           (unsigned long long)i, (int)ids[i], (int)s->ids[i]);
    return ERR_OK;
}

/* Reads what follows the header, of which the first n_same tokens have to be the session's. The session is longer when
 * all of it was good, and else what it was. */
static err_code append_to(moebius_session *s, struct saved_reader *r, const struct saved_header *h, uint64_t n_same,
                          int32_t *ids, struct err *e)
{
    float *logits = (float *)(ids + h->n_tok);
    TRY(saved_get_ids(r, h, ids, e));
    TRY(check_same(s, r, ids, n_same, e));
    TRY(saved_get(r, logits, h->n_logits * sizeof *logits, e));
    if (h->n_logits)
        TRY(session_logits_room(s, e));
    TRY(model_state_load(s->state, (int64_t)h->n_tok, get, r, e));
    err_code code = saved_get_crc(r, e);
    model_state_load_end(s->state, code == ERR_OK);
    TRY(code);
    memcpy(s->ids + h->from, ids + h->from, (size_t)(h->n_tok - h->from) * sizeof *ids);
    if (h->n_logits)
        memcpy(s->logits, logits, h->n_logits * sizeof *logits);
    s->last = h->n_logits ? s->logits : NULL;
    return ERR_OK;
}

static err_code append(moebius_session *s, struct saved_reader *r, const struct saved_header *h, uint64_t n_same,
                       struct err *e)
{
    int32_t *ids;
    TRY(make_room(h, &ids, e));
    err_code code = append_to(s, r, h, n_same, ids, e);
    mem_free(ids);
    return code;
}

/* The file is read twice: once to check it, and once to take it over, before which the session has to become empty. A
 * file that has changed between the two leaves it so. */
static err_code load(moebius_session *s, struct saved_reader *r, const struct saved_header *h, struct err *e)
{
    TRY(saved_check_header(s, h, r->path, e));
    if (h->from > 0)
        return err_set(e, ERR_USAGE, "%s: a part of a session, from token %llu on: expected one from its beginning",
                       r->path, (unsigned long long)h->from);
    TRY(check_contents(r, h, e));
    s->last = NULL;
    session_forget_parked(s);
    model_state_truncate(s->state, 0);
    return append(s, r, h, 0, e);
}

static err_code load_part(moebius_session *s, struct saved_reader *r, const struct saved_header *h, struct err *e)
{
    int64_t pos = moebius_session_pos(s);
    TRY(saved_check_header(s, h, r->path, e));
    if (h->from != (uint64_t)pos)
        return err_set(e, ERR_USAGE, "%s: a part of a session, from token %llu on: this session has %lld", r->path,
                       (unsigned long long)h->from, (long long)pos);
    TRY(session_unpark(s, e));
    return append(s, r, h, h->from, e);
}

static err_code load_parked(moebius_session *s, struct saved_reader *r, const struct saved_header *h, struct err *e)
{
    TRY(saved_check_header(s, h, r->path, e));
    if (h->from > 0 || h->n_tok != (uint64_t)s->parked.pos)
        return err_set(e, ERR_USAGE, "%s: tokens %llu to %llu of a session: expected the %lld that were parked",
                       r->path, (unsigned long long)h->from, (unsigned long long)h->n_tok, (long long)s->parked.pos);
    return append(s, r, h, h->n_tok, e);
}

static err_code load_file(moebius_session *s, const char *path,
                          err_code (*fn)(moebius_session *s, struct saved_reader *r, const struct saved_header *h,
                                         struct err *e),
                          struct err *e)
{
    struct saved_header h;
    struct saved_reader r;
    TRY(saved_open(&r, path, &h, e));
    err_code code = fn(s, &r, &h, e);
    saved_close(&r);
    return code;
}

err_code session_load_parked(moebius_session *s, struct err *e)
{
    return load_file(s, s->parked.path, load_parked, e);
}

moebius_status moebius_session_load(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(load_file(session, path, load, &e), &e, error);
}

moebius_status moebius_session_load_part(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(load_file(session, path, load_part, &e), &e, error);
}
