#define _GNU_SOURCE
#include "hub/download.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file_io.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/output_file.h"
#include "hub/model_name.h"
#include "hub/model_sets.h"
#include "hub/piece_table.h"

union hash {
    struct sha256_ctx sha256;
    struct sha1_ctx git;
};

struct job {
    const struct download *d;
    const struct download_hooks *hooks;
    struct http_client *client;
    int fd, lock_fd;
    char part[HUB_PLACE_BYTES], table_path[HUB_PLACE_BYTES];
    struct piece_table table;
    union hash hash; /* hash of the first `have` bytes */
    uint64_t have;
    uint32_t crc;         /* CRC of those of them that belong to the last piece */
    unsigned char *piece; /* [PIECE_BYTES] */
};

static void say(const struct job *j, const char *line)
{
    if (j->hooks->say)
        j->hooks->say(j->hooks->user, line);
}

static void show(const struct job *j)
{
    if (j->hooks->progress)
        j->hooks->progress(j->hooks->user, j->have, j->d->n_bytes);
}

/* ---- the checksum ---------------------------------------------------------------------------------------------- */

static bool is_known_by_git(const struct job *j)
{
    return j->d->digest && strlen(j->d->digest) == HUB_GIT_DIGITS;
}

static void hash_begin(struct job *j)
{
    char head[32];
    j->have = 0;
    if (!is_known_by_git(j)) {
        sha256_init(&j->hash.sha256);
        return;
    }
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)j->d->n_bytes);
    sha1_init(&j->hash.git);
    sha1_update(&j->hash.git, (size_t)n + 1, (const uint8_t *)head); /* with its NUL */
}

static void hash_more(struct job *j, size_t n, const void *bytes)
{
    if (is_known_by_git(j))
        sha1_update(&j->hash.git, n, bytes);
    else
        sha256_update(&j->hash.sha256, n, bytes);
}

/* Whether the bytes so far have the checksum that the server states; true if it states none. */
static bool is_right(const struct job *j)
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    char hex[2 * SHA256_DIGEST_SIZE + 1];
    union hash hash = j->hash;
    bool by_git = is_known_by_git(j);
    if (by_git)
        sha1_digest(&hash.git, SHA1_DIGEST_SIZE, digest);
    else
        sha256_digest(&hash.sha256, SHA256_DIGEST_SIZE, digest);
    for (size_t i = 0; i < (by_git ? SHA1_DIGEST_SIZE : SHA256_DIGEST_SIZE); i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return !j->d->digest || strcmp(hex, j->d->digest) == 0;
}

/* ---- pieces ---------------------------------------------------------------------------------------------------- */

static uint64_t piece_begin(uint64_t i)
{
    return i * PIECE_BYTES;
}

static uint64_t piece_length(const struct job *j, uint64_t i)
{
    return (uint64_t)min_i64(PIECE_BYTES, (int64_t)(j->d->n_bytes - piece_begin(i)));
}

/* ---- ranges from the server ------------------------------------------------------------------------------------ */

/* A range that is being downloaded, maybe over several connections. */
struct range {
    const struct job *job;
    uint64_t at, end;
    uint64_t skip; /* bytes to drop at the beginning of the answer, as they are there already */
    err_code (*put)(void *to, const char *bytes, size_t n, struct err *e);
    void *to;
};

/* Checks that the answer is what was requested. */
static err_code check_head(void *user, const struct http_head *h, enum http_failure *failure, struct err *e)
{
    struct range *r = user;
    const struct download *d = r->job->d;
    unsigned long long at = r->at, last = r->end - 1, all = d->n_bytes;
    *failure = HTTP_AGAIN;
    if (d->digest && strlen(h->linked_etag) == strlen(d->digest) && strcmp(h->linked_etag, d->digest) != 0) {
        *failure = HTTP_FINAL;
        return err_set(e, ERR_CHECK, "%s: the server gives a file of another checksum (%s) than it lists (%s)", d->name,
                       h->linked_etag, d->digest);
    }
    if (!d->digest && *d->etag && *h->etag && strcmp(h->etag, d->etag) != 0) {
        *failure = HTTP_FINAL;
        return err_set(e, ERR_CHECK, "%s: the server's file has changed", d->name);
    }
    if (h->status == 200 && at == 0 && (h->n_bytes < 0 || (uint64_t)h->n_bytes == all))
        return ERR_OK;
    if (h->status == 200 && at == 0)
        return err_set(e, ERR_IO, "%s: the server gives %lld bytes, where it had said %llu", d->name,
                       (long long)h->n_bytes, all);
    r->skip = at;
    if (h->status == 200 && !d->digest && h->n_bytes >= 0 && (uint64_t)h->n_bytes == all)
        return ERR_OK; /* simple servers don't support ranges */
    r->skip = 0;
    if (h->status == 200)
        return err_set(e, ERR_IO,
                       "%s: the server gives the whole file, where bytes %llu to %llu were asked for: it can't resume",
                       d->name, at, last);
    if (!h->has_range || h->first != at || h->last > last || (h->n_whole >= 0 && (uint64_t)h->n_whole != all) ||
        (h->n_bytes >= 0 && (uint64_t)h->n_bytes != h->last - h->first + 1))
        return err_set(
            e, ERR_IO, "%s: the server gives bytes %llu to %llu of %lld, where %llu to %llu of %llu were asked for",
            d->name, (unsigned long long)h->first, (unsigned long long)h->last, (long long)h->n_whole, at, last, all);
    return ERR_OK;
}

static bool take(void *user, const char *bytes, size_t n, struct err *e)
{
    struct range *r = user;
    size_t skipped = (size_t)min_i64((int64_t)n, (int64_t)r->skip);
    r->skip -= skipped;
    bytes += skipped;
    n -= skipped;
    size_t wanted = (size_t)min_i64((int64_t)n, (int64_t)(r->end - r->at));
    if (r->put(r->to, bytes, wanted, e) != ERR_OK)
        return false;
    r->at += wanted;
    return wanted == n;
}

/* Passes the bytes `at` to `end` to `put`, each exactly once, however often connections break. */
static err_code get_range(const struct job *j, struct range *r, struct err *e)
{
    struct http_head head;
    enum http_failure failure;
    for (int n_failed = 0; r->at < r->end;) {
        uint64_t before = r->at;
        r->skip = 0;
        const struct http_get get = {
            .url = j->d->url, .from = r->at, .n = r->end - r->at, .begin = check_head, .take = take, .user = r};
        err_code code = http_client_get(j->client, &get, &head, &failure, e);
        if (r->at == r->end)
            break;
        if (code == ERR_CANCELLED || (code != ERR_OK && failure == HTTP_FINAL))
            return code;
        if (code == ERR_OK && r->at == before)
            code = err_set(e, ERR_IO, "%s: the server ends at byte %llu of %llu", j->d->name, (unsigned long long)r->at,
                           (unsigned long long)j->d->n_bytes);
        n_failed = r->at > before ? 0 : n_failed + 1;
        if (code != ERR_OK)
            TRY(http_client_again(j->client, j->d->url, n_failed, code, e));
    }
    return ERR_OK;
}

/* ---- the part -------------------------------------------------------------------------------------------------- */

static err_code failed(const struct job *j, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", j->part, strerror(errno));
}

/* Counts and hashes the next bytes, which have been written to the file. */
static err_code count(struct job *j, const void *bytes, size_t n, struct err *e)
{
    hash_more(j, n, bytes);
    for (const unsigned char *p = bytes; n > 0;) {
        uint64_t i = j->have / PIECE_BYTES, end = piece_begin(i) + piece_length(j, i);
        size_t some = (size_t)min_i64((int64_t)n, (int64_t)(end - j->have));
        j->crc = crc32c(j->crc, p, some);
        j->have += some;
        p += some;
        n -= some;
        if (j->have == end) {
            if (j->table.pieces[i].state == PIECE_UNKNOWN || j->table.pieces[i].crc != j->crc)
                TRY(piece_table_put(&j->table, i, (struct piece){j->crc, PIECE_RECEIVED}, e));
            j->crc = 0;
        }
    }
    return ERR_OK;
}

/* Writes arriving bytes to the file at once, so that they survive if the program is killed. */
static err_code append(void *to, const char *bytes, size_t n, struct err *e)
{
    struct job *j = to;
    if (!file_write_at(j->fd, bytes, n, j->have))
        return failed(j, e);
    TRY(count(j, bytes, n, e));
    show(j);
    return ERR_OK;
}

struct buffer {
    unsigned char *bytes;
    size_t n;
};

static err_code collect(void *to, const char *bytes, size_t n, struct err *e)
{
    struct buffer *b = to;
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
    return ERR_OK;
}

/* Downloads a piece again. */
static err_code get_piece(const struct job *j, uint64_t i, unsigned char *out, struct err *e)
{
    struct buffer b = {.bytes = out};
    struct range r = {j, piece_begin(i), piece_begin(i) + piece_length(j, i), 0, collect, &b};
    return get_range(j, &r, e);
}

static err_code read_piece(const struct job *j, uint64_t i, size_t n, unsigned char *out, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(j->fd, out + done, n - done, (off_t)(piece_begin(i) + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_set(e, ERR_IO, "%s: %s", j->part, got < 0 ? strerror(errno) : "became shorter");
        done += (size_t)got;
    }
    return ERR_OK;
}

/* Checks a whole piece, which has been read into j->piece: if it has changed on the drive, it is downloaded again. */
static err_code mend_piece(struct job *j, uint64_t i, struct err *e)
{
    size_t n = (size_t)piece_length(j, i);
    const struct piece known = j->table.pieces[i];
    if (known.state == PIECE_UNKNOWN || crc32c(0, j->piece, n) == known.crc)
        return ERR_OK;
    say(j, "a piece of the part was damaged on the drive: it is fetched again");
    TRY(get_piece(j, i, j->piece, e));
    return file_write_at(j->fd, j->piece, n, piece_begin(i)) ? ERR_OK : failed(j, e);
}

/* Reads the first n_there bytes of the file, hashes them, and repairs damaged pieces. */
static err_code read_part(struct job *j, uint64_t n_there, struct err *e)
{
    hash_begin(j);
    j->crc = 0;
    while (j->have < n_there) {
        uint64_t i = j->have / PIECE_BYTES, length = piece_length(j, i);
        size_t n = (size_t)min_i64((int64_t)length, (int64_t)(n_there - j->have));
        TRY(http_client_check(j->client, e));
        TRY(read_piece(j, i, n, j->piece, e));
        if (n == length)
            TRY(mend_piece(j, i, e));
        TRY(count(j, j->piece, n, e));
        show(j);
    }
    return ERR_OK;
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

/* Downloads a piece a second time. *is_new: it differs from the file's, and has been written to the file. */
static err_code compare_piece(struct job *j, uint64_t i, unsigned char *again, bool *is_new, struct err *e)
{
    size_t n = (size_t)piece_length(j, i);
    TRY(read_piece(j, i, n, j->piece, e));
    TRY(get_piece(j, i, again, e));
    *is_new = memcmp(j->piece, again, n) != 0;
    if (*is_new && !file_write_at(j->fd, again, n, piece_begin(i)))
        return failed(j, e);
    const struct piece p = {crc32c(0, again, n), *is_new ? PIECE_RECEIVED : PIECE_CONFIRMED};
    return piece_table_put(&j->table, i, p, e);
}

/* Downloads pieces again until the checksum of the whole is right. Computing it reads the whole file, so it is computed
 * after each of the first few wrong pieces, and then only at the end. */
static err_code mend_by_comparing(struct job *j, unsigned char *again, struct err *e)
{
    enum { MOST_LOOKS = 3 };
    char line[160];
    int n_wrong = 0;
    for (uint64_t i = 0; i < j->table.n; i++) {
        bool is_new = false;
        if (j->table.pieces[i].state == PIECE_CONFIRMED)
            continue;
        TRY(compare_piece(j, i, again, &is_new, e));
        if (!is_new || ++n_wrong > MOST_LOOKS)
            continue;
        snprintf(line, sizeof line, "piece %llu of %llu had arrived wrong", (unsigned long long)i + 1,
                 (unsigned long long)j->table.n);
        say(j, line);
        TRY(read_part(j, j->d->n_bytes, e));
        if (is_right(j))
            return ERR_OK;
    }
    return n_wrong > MOST_LOOKS ? read_part(j, j->d->n_bytes, e) : ERR_OK;
}

static err_code find_wrong_pieces(struct job *j, unsigned char *again, struct err *e)
{
    TRY(mend_by_comparing(j, again, e));
    if (is_right(j))
        return ERR_OK;
    for (uint64_t i = 0; i < j->table.n; i++)
        TRY(piece_table_put(&j->table, i, (struct piece){j->table.pieces[i].crc, PIECE_RECEIVED}, e));
    return err_set(
        e, ERR_CHECK,
        "%s: all of it was fetched twice, and its checksum is not what the server lists (%s): it stays in %s",
        j->d->name, j->d->digest, j->part);
}

/* Checks the whole file once all bytes are there, and repairs it if need be. */
static err_code verify(struct job *j, struct err *e)
{
    if (is_right(j))
        return ERR_OK;
    say(j, "the checksum of the whole is not what the server lists: looking for the wrong piece");
    TRY(read_part(j, j->d->n_bytes, e)); /* repairs what has changed on the drive */
    if (is_right(j))
        return ERR_OK;
    unsigned char *again = mem_alloc(PIECE_BYTES);
    if (!again)
        return err_nomem(e, PIECE_BYTES, "a piece");
    err_code code = find_wrong_pieces(j, again, e);
    mem_free(again);
    return code;
}

static err_code finish(struct job *j, struct err *e)
{
    TRY(verify(j, e));
    if ((!file_sync(j->fd) && errno != EINVAL) || !file_rename(j->part, j->d->path))
        return failed(j, e);
    output_file_sync_folder(j->d->path);
    (void)unlink(j->table_path);
    return ERR_OK;
}

/* ---- begin ----------------------------------------------------------------------------------------------------- */

/* Locks the file against other programs, which wait until it is there. The lock file remains. For addresses outside the
 * Hub it contains the URL's scheme, which the path of the download does not show. */
static err_code lock(struct job *j, struct err *e)
{
    bool is_told = false;
    const char *url = j->d->url;
    j->lock_fd = file_open(j->d->lock, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (j->lock_fd < 0)
        return err_set(e, ERR_IO, "%s: %s", j->d->lock, strerror(errno));
    while (flock(j->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_set(e, ERR_IO, "%s: %s", j->d->lock, strerror(errno));
        if (!is_told)
            say(j, "another program is fetching this file: waiting for it");
        is_told = true;
        TRY(http_client_again(j->client, url, 0, ERR_OK, e));
    }
    if (!j->d->digest && pwrite(j->lock_fd, url, (size_t)(strstr(url, "://") + 3 - url), 0) < 0)
        return err_set(e, ERR_IO, "%s: %s", j->d->lock, strerror(errno));
    return ERR_OK;
}

/* Without a checksum, a part is continued only if it is known to belong to this very file. */
static err_code check_part(const struct job *j, struct err *e)
{
    const struct download *d = j->d;
    struct piece_label label;
    if (d->digest || part_bytes(d->path) == 0)
        return ERR_OK;
    if (piece_table_label(j->table_path, &label) && label.n_bytes == d->n_bytes && strcmp(label.tag, d->etag) == 0)
        return ERR_OK;
    return err_set(e, ERR_CHECK,
                   "%s: the file has changed since a part of it was fetched: remove that first (moebius rm)", d->name);
}

static err_code open_part(struct job *j, uint64_t *n_there, struct err *e)
{
    struct stat st;
    const struct download *d = j->d;
    TRY(check_part(j, e));
    j->fd = file_open(j->part, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (j->fd < 0 || fstat(j->fd, &st) != 0)
        return failed(j, e);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a plain file", j->part);
    if ((uint64_t)st.st_size > d->n_bytes && ftruncate(j->fd, (off_t)d->n_bytes) != 0)
        return failed(j, e);
    *n_there = (uint64_t)min_i64((int64_t)st.st_size, (int64_t)d->n_bytes);
    return piece_table_open(&j->table, j->table_path, d->n_bytes, d->digest ? d->digest : d->etag, d->name, e);
}

static err_code fetch(struct job *j, uint64_t n_first, struct err *e)
{
    struct stat st;
    uint64_t n_there = 0, end = n_first < j->d->n_bytes ? n_first : j->d->n_bytes;
    TRY(lock(j, e));
    if (stat(j->d->path, &st) == 0) /* another program was faster */
        return ERR_OK;
    if (n_first < j->d->n_bytes && part_bytes(j->d->path) >= end)
        return ERR_OK;
    TRY(open_part(j, &n_there, e));
    TRY(read_part(j, n_there, e));
    struct range r = {j, j->have, end, 0, append, j};
    if (j->have < end)
        TRY(get_range(j, &r, e));
    return end == j->d->n_bytes && n_first == UINT64_MAX ? finish(j, e) : ERR_OK;
}

/* Says what is kept after a failure. A part without a byte is removed. One that could not be read or repaired is kept,
 * since a later run may succeed. */
static err_code leave(const struct job *j, err_code code, struct err *e)
{
    char why[ERR_TEXT_BYTES];
    struct stat st;
    if (j->fd < 0 || fstat(j->fd, &st) != 0)
        return code;
    if (st.st_size == 0) {
        (void)unlink(j->part);
        (void)unlink(j->table_path);
        return code;
    }
    if (code == ERR_NOMEM)
        return code;
    snprintf(why, sizeof why, "%s", e->text);
    return err_set(e, code, "%.*s; %llu of %llu bytes are kept: run the same command again to resume",
                   ERR_TEXT_BYTES - 128, why, (unsigned long long)st.st_size, (unsigned long long)j->d->n_bytes);
}

err_code download_run(const struct download *d, uint64_t n_first, struct http_client *c,
                      const struct download_hooks *hooks, struct err *e)
{
    struct job j = {.d = d, .hooks = hooks, .client = c, .fd = -1, .lock_fd = -1, .table.fd = -1};
    if (!part_path(d->path, j.part, sizeof j.part) ||
        (size_t)snprintf(j.table_path, sizeof j.table_path, "%s.pieces", j.part) >= sizeof j.table_path)
        return err_set(e, ERR_USAGE, "%s: longer than paths may be", d->path);
    j.piece = mem_alloc(PIECE_BYTES);
    err_code code = j.piece ? fetch(&j, n_first, e) : err_nomem(e, PIECE_BYTES, "a piece");
    if (code != ERR_OK)
        code = leave(&j, code, e);
    piece_table_close(&j.table);
    mem_free(j.piece);
    if (j.fd >= 0)
        close(j.fd);
    if (j.lock_fd >= 0)
        close(j.lock_fd); /* which unlocks it */
    return code;
}

/* ---- what a server has ------------------------------------------------------------------------------------------ */

struct probe {
    const char *url;
    uint64_t n_bytes;
    char etag[130];
};

static err_code look(void *user, const struct http_head *h, enum http_failure *failure, struct err *e)
{
    struct probe *p = user;
    int64_t n = h->status == 206 && h->has_range ? h->n_whole : h->status == 200 ? h->n_bytes : -1;
    *failure = HTTP_FINAL;
    if (n <= 0 || n > HUB_MOST_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "%.200s: the server does not say how long the file is", p->url);
    p->n_bytes = (uint64_t)n;
    memcpy(p->etag, h->etag, sizeof p->etag);
    return ERR_OK;
}

static bool take_nothing(void *user, const char *bytes, size_t n, struct err *e)
{
    return false;
}

err_code download_probe(struct http_client *c, const char *url, uint64_t *n_bytes, char etag[130], struct err *e)
{
    struct probe p = {.url = url};
    struct http_head head;
    enum http_failure failure;
    const struct http_get get = {.url = url, .from = 0, .n = 1, .begin = look, .take = take_nothing, .user = &p};
    for (int n_failed = 0;;) {
        err_code code = http_client_get(c, &get, &head, &failure, e);
        *n_bytes = p.n_bytes;
        memcpy(etag, p.etag, sizeof p.etag);
        if (code == ERR_OK || code == ERR_CANCELLED || failure == HTTP_FINAL)
            return code;
        TRY(http_client_again(c, url, ++n_failed, code, e));
    }
}
