#define _POSIX_C_SOURCE 200809L
#include "engine/saved_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file_io.h"
#include "engine/sized.h"

enum { VERSION = 2 };

static const char magic[8] = {'M', 'O', 'E', 'B', 'S', 'E', 'S', 'S'};

_Static_assert(sizeof(struct saved_header) == 120 && offsetof(struct saved_header, crc) == 116, "no gaps");

static const char *kv_name(uint32_t kv)
{
    static const char *const names[] = {[MOEBIUS_KV_F16] = "F16", [MOEBIUS_KV_F32] = "F32", [MOEBIUS_KV_Q8_0] = "Q8_0"};
    return kv < sizeof names / sizeof *names ? names[kv] : "an unknown type";
}

/* ---- hashes of tokens ---------------------------------------------------------------------------------------- */

/* One step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t moebius_tokens_hash(uint64_t hash, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = mix(hash ^ (uint32_t)ids[i]);
    return hash;
}

/* The hash of no tokens: another one for each model and type of caches, with multi-token prediction, and where
 * substitutes may have computed. */
static uint64_t make_key(const moebius_session *s, uint64_t fingerprint)
{
    uint64_t mtp = (uint64_t)s->engine->model->mtp.n << 31, key = mix(mix(fingerprint) ^ (uint32_t)s->options.kv ^ mtp);
    return car_is_on(&s->car) ? mix(key) : key;
}

moebius_status moebius_session_part_key(const moebius_session *session, uint64_t *key, moebius_error *error)
{
    struct err e = {0};
    uint64_t fingerprint = 0;
    err_code code = engine_fingerprint(session->engine, &fingerprint, &e);
    *key = make_key(session, fingerprint);
    return engine_status(code, &e, error);
}

/* ---- headers -------------------------------------------------------------------------------------------------- */

uint64_t saved_bytes(const moebius_session *s, uint64_t from, uint64_t n_tok, uint64_t n_logits)
{
    return sizeof(struct saved_header) + n_tok * sizeof(int32_t) + n_logits * sizeof(float) +
           model_state_saved_bytes(s->state, (int64_t)from, (int64_t)n_tok) + sizeof(uint32_t);
}

err_code saved_make_header(const moebius_session *s, int64_t from, int64_t n_tok, struct saved_header *h, struct err *e)
{
    const struct model *m = s->engine->model;
    *h = (struct saved_header){.version = VERSION,
                               .kv = (uint32_t)s->options.kv,
                               .n_layer = (uint32_t)m->n_layer,
                               .n_embd = (uint32_t)m->n_embd,
                               .n_vocab = (uint32_t)m->n_vocab,
                               .n_logits = s->last && n_tok == model_state_pos(s->state) ? (uint32_t)m->n_vocab : 0,
                               .from = (uint64_t)from,
                               .n_tok = (uint64_t)n_tok};
    memcpy(h->magic, magic, sizeof magic);
    snprintf(h->arch, sizeof h->arch, "%s", m->arch);
    h->n_bytes = saved_bytes(s, h->from, h->n_tok, h->n_logits);
    TRY(engine_fingerprint(s->engine, &h->fingerprint, e));
    h->hash_before = moebius_tokens_hash(make_key(s, h->fingerprint), s->ids, (size_t)from);
    h->hash = moebius_tokens_hash(h->hash_before, s->ids + from, (size_t)(n_tok - from));
    h->ids_crc = crc32c(0, s->ids, (size_t)n_tok * sizeof *s->ids);
    h->crc = crc32c(0, h, offsetof(struct saved_header, crc));
    return ERR_OK;
}

static err_code read_header(struct saved_reader *r, struct saved_header *h, struct err *e)
{
    struct stat st;
    if (fstat(fileno(r->stream), &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", r->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)(sizeof *h + sizeof(uint32_t)))
        return err_set(e, ERR_FORMAT, "%s: no saved session: expected a file of at least %zu bytes", r->path,
                       sizeof *h + sizeof(uint32_t));
    TRY(saved_get(r, h, sizeof *h, e));
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(e, ERR_FORMAT, "%s: no saved session: it begins with other bytes than \"%.8s\"", r->path, magic);
    if (h->version != VERSION)
        return err_set(e, ERR_UNSUPPORTED, "%s: a saved session of version %u: expected %d", r->path,
                       (unsigned)h->version, VERSION);
    if (h->crc != crc32c(0, h, offsetof(struct saved_header, crc)))
        return err_set(e, ERR_FORMAT, "%s: damaged: the checksum of its header is wrong", r->path);
    if (h->n_bytes != (uint64_t)st.st_size)
        return err_set(e, ERR_FORMAT, "%s: damaged: %llu bytes long, expected %llu", r->path,
                       (unsigned long long)st.st_size, (unsigned long long)h->n_bytes);
    if (h->n_tok > INT32_MAX)
        return err_set(e, ERR_LIMIT, "%s: %llu tokens are more than any context", r->path,
                       (unsigned long long)h->n_tok);
    if (h->from > h->n_tok || h->n_tok * sizeof(int32_t) > h->n_bytes - sizeof *h - sizeof(uint32_t))
        return err_set(e, ERR_FORMAT, "%s: malformed: %llu bytes for the tokens up to %llu, from %llu on", r->path,
                       (unsigned long long)h->n_bytes, (unsigned long long)h->n_tok, (unsigned long long)h->from);
    return ERR_OK;
}

err_code saved_check_header(const moebius_session *s, const struct saved_header *h, const char *path, struct err *e)
{
    const struct model *m = s->engine->model;
    uint64_t fingerprint;
    TRY(engine_fingerprint(s->engine, &fingerprint, e));
    if (h->fingerprint == fingerprint && h->n_layer != m->n_layer)
        return err_set(e, ERR_USAGE,
                       "%s: saved with %lld of the model's layers for multi-token prediction, and this session has "
                       "%lld: they must be the same",
                       path, (long long)h->n_layer - (long long)m->n_trunk, (long long)m->mtp.n);
    if (strncmp(h->arch, m->arch, sizeof h->arch) != 0 || h->n_layer != m->n_layer || h->n_embd != m->n_embd ||
        h->n_vocab != m->n_vocab || h->fingerprint != fingerprint)
        return err_set(
            e, ERR_FORMAT,
            "%s: a session of another model: %.32s of %u layers, %016llx; this one is %s of %lld layers, %016llx", path,
            h->arch, (unsigned)h->n_layer, (unsigned long long)h->fingerprint, m->arch, (long long)m->n_layer,
            (unsigned long long)fingerprint);
    if (h->kv != (uint32_t)s->options.kv)
        return err_set(e, ERR_USAGE, "%s: its KV cache is %s, this session's %s: they must be the same", path,
                       kv_name(h->kv), kv_name((uint32_t)s->options.kv));
    if (h->n_tok > (uint64_t)model_state_n_ctx(s->state))
        return err_set(e, ERR_LIMIT, "%s: %llu tokens are more than the context of %lld", path,
                       (unsigned long long)h->n_tok, (long long)model_state_n_ctx(s->state));
    if ((h->n_logits != 0 && h->n_logits != h->n_vocab) || (h->from == h->n_tok && h->from > 0) ||
        h->n_bytes != saved_bytes(s, h->from, h->n_tok, h->n_logits))
        return err_set(e, ERR_FORMAT, "%s: malformed: tokens %llu to %llu and %u logits have another size", path,
                       (unsigned long long)h->from, (unsigned long long)h->n_tok, (unsigned)h->n_logits);
    return ERR_OK;
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

err_code saved_open(struct saved_reader *r, const char *path, struct saved_header *h, struct err *e)
{
    int fd = file_open(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe's other end is not waited for */
    *r = (struct saved_reader){.stream = fd >= 0 ? fdopen(fd, "rb") : NULL, .path = path};
    if (!r->stream) {
        err_code code = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return code;
    }
    err_code code = read_header(r, h, e);
    if (code != ERR_OK)
        saved_close(r);
    return code;
}

void saved_close(struct saved_reader *r)
{
    fclose(r->stream);
    r->stream = NULL;
}

err_code saved_get(struct saved_reader *r, void *bytes, size_t n, struct err *e)
{
    FILE *f = r->stream;
    if (fread(bytes, 1, n, f) != n)
        return err_set(e, ERR_IO, "%s: %s", r->path, ferror(f) ? strerror(errno) : "the file ends too early");
    r->crc = crc32c(r->crc, bytes, n);
    return ERR_OK;
}

static err_code wrong_crc(const struct saved_reader *r, const char *of, uint32_t got, uint32_t expected, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: damaged: %s checksum is %08x, expected %08x", r->path, of, (unsigned)got,
                   (unsigned)expected);
}

err_code saved_get_ids(struct saved_reader *r, const struct saved_header *h, int32_t *ids, struct err *e)
{
    uint64_t n_foreign = 0;
    TRY(saved_get(r, ids, (size_t)h->n_tok * sizeof *ids, e));
    uint32_t crc = crc32c(0, ids, (size_t)h->n_tok * sizeof *ids);
    if (crc != h->ids_crc)
        return wrong_crc(r, "its tokens'", crc, h->ids_crc, e);
    for (uint64_t i = 0; i < h->n_tok; i++)
        n_foreign += ids[i] < 0 || (uint32_t)ids[i] >= h->n_vocab;
    return n_foreign == 0 ? ERR_OK
                          : err_set(e, ERR_FORMAT, "%s: malformed: %llu tokens are none of the vocabulary", r->path,
                                    (unsigned long long)n_foreign);
}

err_code saved_get_crc(struct saved_reader *r, struct err *e)
{
    uint32_t want = r->crc, crc = 0;
    TRY(saved_get(r, &crc, sizeof crc, e));
    return crc == want ? ERR_OK : wrong_crc(r, "its", crc, want, e);
}

/* ---- for indexes ---------------------------------------------------------------------------------------------- */

moebius_status moebius_part_read_sized(const char *path, moebius_part *out, size_t out_bytes, moebius_error *error)
{
    struct err e = {0};
    struct saved_header h;
    struct saved_reader r;
    moebius_part part = {0};
    err_code code = saved_open(&r, path, &h, &e);
    if (code == ERR_OK) {
        saved_close(&r);
        part = (moebius_part){.from = (int64_t)h.from,
                              .n_tok = (int64_t)h.n_tok,
                              .n_bytes = (int64_t)h.n_bytes,
                              .hash_before = h.hash_before,
                              .hash = h.hash,
                              .has_logits = h.n_logits > 0};
    }
    sized_give(out, out_bytes, &part, sizeof part);
    return engine_status(code, &e, error);
}

/* The part's own tokens, whose hash is the one in the header. */
static err_code read_own_ids(struct saved_reader *r, const struct saved_header *h, int32_t *ids, int64_t n,
                             struct err *e)
{
    uint64_t n_own = h->n_tok - h->from;
    if ((uint64_t)n != n_own)
        return err_set(e, ERR_USAGE, "%s: a part of %llu tokens, expected %lld", r->path, (unsigned long long)n_own,
                       (long long)n);
    if (fseek(r->stream, (long)(h->from * sizeof *ids), SEEK_CUR) != 0)
        return err_set(e, ERR_IO, "%s: %s", r->path, strerror(errno));
    TRY(saved_get(r, ids, (size_t)n * sizeof *ids, e));
    uint64_t hash = moebius_tokens_hash(h->hash_before, ids, (size_t)n);
    return hash == h->hash ? ERR_OK
                           : err_set(e, ERR_FORMAT, "%s: damaged: its tokens' hash is %016llx, expected %016llx",
                                     r->path, (unsigned long long)hash, (unsigned long long)h->hash);
}

moebius_status moebius_part_tokens(const char *path, int32_t *ids, int64_t n, moebius_error *error)
{
    struct err e = {0};
    struct saved_header h;
    struct saved_reader r;
    err_code code = saved_open(&r, path, &h, &e);
    if (code == ERR_OK) {
        code = read_own_ids(&r, &h, ids, n, &e);
        saved_close(&r);
    }
    return engine_status(code, &e, error);
}
