/* A session in a file. Nothing in it is believed before its checksum was right. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file_io.h"
#include "base/output_file.h"
#include "engine/engine_internal.h"

enum { VERSION = 1, PIECE_BYTES = 1 << 16 };

static const char magic[8] = {'M', 'O', 'E', 'B', 'S', 'E', 'S', 'S'};

/* Little-endian, like all that follows it: the tokens (int32), the logits after the last (float32, n_logits of them:
 * n_vocab or 0), the layers' state (model_state_save), and the CRC32C of everything before. */
struct header {
    char magic[8];
    uint32_t version, kv; /* kv: enum moebius_kv_type */
    char arch[32];
    uint32_t fingerprint, n_layer, n_embd, n_vocab; /* fingerprint: the lower half of store_fingerprint */
    uint64_t n_tok, n_bytes;                        /* n_bytes: of the file */
    uint32_t n_logits, crc;                         /* crc: of the header's bytes before */
};

_Static_assert(sizeof(struct header) == 88 && offsetof(struct header, crc) == 84, "no gaps");

static const char *kv_name(uint32_t kv)
{
    static const char *const names[] = {[MOEBIUS_KV_F16] = "F16", [MOEBIUS_KV_F32] = "F32", [MOEBIUS_KV_Q8_0] = "Q8_0"};
    return kv < sizeof names / sizeof *names ? names[kv] : "an unknown type";
}

static uint64_t file_bytes(const struct moebius_session *s, uint64_t n_tok, uint64_t n_logits)
{
    return sizeof(struct header) + n_tok * sizeof(int32_t) + n_logits * sizeof(float) +
           model_state_saved_bytes(s->state, (int64_t)n_tok) + sizeof(uint32_t);
}

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

static err_code make_header(const struct moebius_session *s, struct header *h, struct err *e)
{
    const struct model *m = s->engine->model;
    *h = (struct header){.version = VERSION,
                         .kv = (uint32_t)s->options.kv,
                         .n_layer = (uint32_t)m->n_layer,
                         .n_embd = (uint32_t)m->n_embd,
                         .n_vocab = (uint32_t)m->n_vocab,
                         .n_tok = (uint64_t)model_state_pos(s->state),
                         .n_logits = s->last ? (uint32_t)m->n_vocab : 0};
    memcpy(h->magic, magic, sizeof magic);
    snprintf(h->arch, sizeof h->arch, "%s", m->arch);
    h->n_bytes = file_bytes(s, h->n_tok, h->n_logits);
    uint64_t fingerprint;
    TRY(store_fingerprint(s->engine->store, &fingerprint, e));
    h->fingerprint = (uint32_t)fingerprint;
    h->crc = crc32c(0, h, offsetof(struct header, crc));
    return ERR_OK;
}

static err_code write_session(moebius_session *s, struct writer *w, struct err *e)
{
    struct header h;
    TRY(make_header(s, &h, e));
    TRY(put(w, &h, sizeof h, e));
    TRY(put(w, s->ids, (size_t)h.n_tok * sizeof *s->ids, e));
    if (s->last)
        TRY(put(w, (float *)s->last, (size_t)h.n_logits * sizeof *s->last, e));
    TRY(model_state_save(s->state, put, w, e));
    uint32_t crc = w->crc;
    return put(w, &crc, sizeof crc, e);
}

err_code session_save(moebius_session *s, const char *path, struct err *e)
{
    struct output_file f = {0};
    TRY(session_unpark(s, e));
    err_code code = output_file_open(&f, path, e);
    struct writer w = {.stream = f.stream, .path = path};
    if (code == ERR_OK)
        code = write_session(s, &w, e);
    if (code == ERR_OK)
        code = output_file_finish(&f, e);
    output_file_abandon(&f);
    return code;
}

moebius_status moebius_session_save(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(session_save(session, path, &e), &e, error);
}

/* ---- loading ------------------------------------------------------------------------------------------------- */

struct session_reader {
    FILE *stream;
    const char *path;
    uint32_t crc;
};

static err_code get(void *user, void *bytes, size_t n, struct err *e)
{
    struct session_reader *r = user;
    if (fread(bytes, 1, n, r->stream) != n)
        return err_set(e, ERR_IO, "%s: %s", r->path, ferror(r->stream) ? strerror(errno) : "the file ends too early");
    r->crc = crc32c(r->crc, bytes, n);
    return ERR_OK;
}

static err_code read_header(struct session_reader *r, struct header *h, struct err *e)
{
    struct stat st;
    if (fstat(fileno(r->stream), &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", r->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)(sizeof *h + sizeof(uint32_t)))
        return err_set(e, ERR_FORMAT, "%s: no saved session: expected a file of at least %zu bytes", r->path,
                       sizeof *h + sizeof(uint32_t));
    TRY(get(r, h, sizeof *h, e));
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "%s: no saved session: it begins with other bytes than \"%.8s\"", r->path, magic);
    if (h->version != VERSION)
        return err_set(e, ERR_UNSUPPORTED, "%s: a saved session of version %u: expected %d", r->path,
                       (unsigned)h->version, VERSION);
    if (h->crc != crc32c(0, h, offsetof(struct header, crc)))
        return err_set(e, ERR_FORMAT, "%s: damaged: the checksum of its header is wrong", r->path);
    if (h->n_bytes != (uint64_t)st.st_size)
        return err_set(e, ERR_FORMAT, "%s: damaged: %llu bytes long, expected %llu", r->path,
                       (unsigned long long)st.st_size, (unsigned long long)h->n_bytes);
    return ERR_OK;
}

/* Whether the file's state is one of this session's model and type, and fits. */
static err_code check_header(const struct moebius_session *s, const struct header *h, const char *path, struct err *e)
{
    const struct model *m = s->engine->model;
    uint64_t fingerprint;
    TRY(store_fingerprint(s->engine->store, &fingerprint, e));
    if (strncmp(h->arch, m->arch, sizeof h->arch) != 0 || h->n_layer != m->n_layer || h->n_embd != m->n_embd ||
        h->n_vocab != m->n_vocab || h->fingerprint != (uint32_t)fingerprint)
        return err_set(e, ERR_FORMAT,
                       "%s: a session of another model: %.32s of %u layers, %08x; this one is %s of %lld layers, %08x",
                       path, h->arch, (unsigned)h->n_layer, (unsigned)h->fingerprint, m->arch, (long long)m->n_layer,
                       (unsigned)fingerprint);
    if (h->kv != (uint32_t)s->options.kv)
        return err_set(e, ERR_USAGE, "%s: its KV cache is %s, this session's %s: they must be the same", path,
                       kv_name(h->kv), kv_name((uint32_t)s->options.kv));
    if (h->n_tok > (uint64_t)model_state_n_ctx(s->state))
        return err_set(e, ERR_LIMIT, "%s: %llu tokens are more than the context of %lld", path,
                       (unsigned long long)h->n_tok, (long long)model_state_n_ctx(s->state));
    if ((h->n_logits != 0 && h->n_logits != h->n_vocab) || h->n_bytes != file_bytes(s, h->n_tok, h->n_logits))
        return err_set(e, ERR_FORMAT, "%s: malformed: a session of %llu tokens and %u logits has another size", path,
                       (unsigned long long)h->n_tok, (unsigned)h->n_logits);
    return ERR_OK;
}

/* How many of n tokens are none of the vocabulary. */
static uint64_t count_foreign(const struct header *h, const int32_t *ids, uint64_t n)
{
    uint64_t n_foreign = 0;
    for (uint64_t i = 0; i < n; i++)
        n_foreign += ids[i] < 0 || (uint32_t)ids[i] >= h->n_vocab;
    return n_foreign;
}

static err_code refuse_foreign(const struct session_reader *r, uint64_t n_foreign, struct err *e)
{
    return n_foreign == 0 ? ERR_OK
                          : err_set(e, ERR_FORMAT, "%s: malformed: %llu tokens are none of the vocabulary", r->path,
                                    (unsigned long long)n_foreign);
}

/* Reads to the end: the checksum must be right, and the tokens those of the vocabulary. */
static err_code check_contents(struct session_reader *r, const struct header *h, struct err *e)
{
    int32_t *piece = mem_alloc(PIECE_BYTES);
    if (!piece)
        return err_nomem(e, PIECE_BYTES, "reading a session");
    err_code code = ERR_OK;
    uint64_t end = h->n_bytes - sizeof(uint32_t), n_foreign = 0;
    for (uint64_t at = sizeof *h, n; at < end && code == ERR_OK; at += n) {
        n = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;
        code = get(r, piece, (size_t)n, e);
        uint64_t tok0 = (at - sizeof *h) / sizeof *piece, n_left = tok0 < h->n_tok ? h->n_tok - tok0 : 0;
        uint64_t n_here = n / sizeof *piece < n_left ? n / sizeof *piece : n_left;
        n_foreign += code == ERR_OK ? count_foreign(h, piece, n_here) : 0;
    }
    mem_free(piece);
    TRY(code);
    uint32_t want = r->crc, crc = 0;
    TRY(get(r, &crc, sizeof crc, e));
    if (crc != want)
        return err_set(e, ERR_FORMAT, "%s: damaged: its checksum is %08x, expected %08x", r->path, (unsigned)crc,
                       (unsigned)want);
    return refuse_foreign(r, n_foreign, e);
}

/* From here on the session changes: where this fails, because the file can't be read a second time or has changed
 * between the two, the session is empty. A changed file may have the right checksum, so its tokens are checked again.
 */
static err_code read_contents(moebius_session *s, struct session_reader *r, const struct header *h, struct err *e)
{
    s->last = NULL;
    session_forget_parked(s);
    model_state_truncate(s->state, 0);
    TRY(get(r, s->ids, (size_t)h->n_tok * sizeof *s->ids, e));
    TRY(refuse_foreign(r, count_foreign(h, s->ids, h->n_tok), e));
    TRY(session_logits_room(s, e));
    TRY(get(r, s->logits, (size_t)h->n_logits * sizeof *s->logits, e));
    TRY(model_state_load(s->state, (int64_t)h->n_tok, get, r, e));
    uint32_t want = r->crc, crc = 0;
    err_code code = get(r, &crc, sizeof crc, e);
    if (code == ERR_OK && crc != want)
        code = err_set(e, ERR_IO, "%s: the file has changed while it was read", r->path);
    if (code != ERR_OK)
        model_state_truncate(s->state, 0);
    else if (h->n_logits)
        s->last = s->logits;
    return code;
}

static err_code load(moebius_session *s, struct session_reader *r, struct err *e)
{
    struct header h, again;
    TRY(read_header(r, &h, e));
    TRY(check_header(s, &h, r->path, e));
    TRY(check_contents(r, &h, e));
    rewind(r->stream);
    r->crc = 0;
    TRY(get(r, &again, sizeof again, e));
    return read_contents(s, r, &h, e);
}

static err_code open_reader(struct session_reader *r, const char *path, struct err *e)
{
    int fd = file_open(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe's other end is not waited for */
    *r = (struct session_reader){.stream = fd >= 0 ? fdopen(fd, "rb") : NULL, .path = path};
    if (r->stream)
        return ERR_OK;
    err_code code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return code;
}

err_code session_load(moebius_session *s, const char *path, struct err *e)
{
    struct session_reader r;
    TRY(open_reader(&r, path, e));
    err_code code = load(s, &r, e);
    fclose(r.stream);
    return code;
}

moebius_status moebius_session_load(moebius_session *session, const char *path, moebius_error *error)
{
    struct err e = {0};
    return engine_status(session_load(session, path, &e), &e, error);
}

moebius_status moebius_saved_n_tok(const char *path, int64_t *n_tok, moebius_error *error)
{
    struct err e = {0};
    struct header h;
    struct session_reader r;
    err_code code = open_reader(&r, path, &e);
    if (code == ERR_OK) {
        code = read_header(&r, &h, &e);
        fclose(r.stream);
    }
    if (code == ERR_OK && h.n_tok > INT32_MAX)
        code = err_set(&e, ERR_LIMIT, "%s: %llu tokens are more than any context", path, (unsigned long long)h.n_tok);
    *n_tok = code == ERR_OK ? (int64_t)h.n_tok : 0;
    return engine_status(code, &e, error);
}
