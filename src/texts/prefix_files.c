#define _POSIX_C_SOURCE 200809L
#include "texts/prefix_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file_io.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/random.h"
#include "texts/part_tree.h"

enum {
    LOCK_WAIT_MS = 5000, /* how long to wait for a process that is about to end */
    RANDOM_DIGITS = 32,  /* of a part's name, hexadecimal */
};

static const char suffix[] = ".part";
static const char lock_name[] = "lock";
static const int64_t retry_ns = 60 * (int64_t)1000000000; /* after a part could not be written */

struct prefix_files {
    char *dir;
    uint64_t max_bytes;
    const struct log *log;
    int lock;         /* the descriptor of a locked file in the folder; -1: none */
    int64_t pause_ns; /* until when nothing is written; 0: no pause */
    struct part_tree tree;
    struct prefix_files_stats stats;
};

/* ---- files --------------------------------------------------------------------------------------------------- */

struct path {
    char s[PATH_MAX];
};

static struct path path_of(const struct prefix_files *f, const char *name)
{
    struct path p;
    snprintf(p.s, sizeof p.s, "%s/%s", f->dir, name);
    return p;
}

static bool is_hex(const char *s)
{
    return strspn(s, "0123456789abcdef") >= RANDOM_DIGITS;
}

static bool is_part_name(const char *name)
{
    return is_hex(name) && strcmp(name + RANDOM_DIGITS, suffix) == 0;
}

/* Whether a file is what is left of a part that a process was writing when it was killed. */
static bool is_unfinished_name(const char *name)
{
    size_t n = strlen(name);
    return is_hex(name) && strncmp(name + RANDOM_DIGITS, suffix, sizeof suffix - 1) == 0 && n > 4 &&
           strcmp(name + n - 4, ".tmp") == 0;
}

static err_code make_name(char name[PART_NAME_BYTES], struct err *e)
{
    uint64_t random[2];
    TRY(random_from_system(random, sizeof random, e));
    snprintf(name, PART_NAME_BYTES, "%016" PRIx64 "%016" PRIx64 "%s", random[0], random[1], suffix);
    return ERR_OK;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static void remove_file(const struct prefix_files *f, const char *name)
{
    struct path p = path_of(f, name);
    if (unlink(p.s) != 0 && errno != ENOENT)
        log_line(f->log, LOG_WARN, "%s can't be removed: %s", p.s, strerror(errno));
}

/* Removes a part and all that continue it, with their files. The last ones are removed first, so that no part is left
 * without its beginning if the process is killed. */
static void drop(struct prefix_files *f, struct part_node *x)
{
    for (bool is_last = false; !is_last;) {
        struct part_node *leaf = part_tree_leaf(x);
        is_last = leaf == x;
        remove_file(f, leaf->name);
        part_tree_remove(&f->tree, leaf);
    }
}

/* Drops parts until n_bytes more would fit, but neither `but` nor the parts that it continues. */
static bool make_room(struct prefix_files *f, uint64_t n_bytes, const struct part_node *but)
{
    if (n_bytes > f->max_bytes)
        return false;
    while (f->tree.n_bytes > f->max_bytes - n_bytes) {
        struct part_node *x = part_tree_oldest(&f->tree, but);
        if (!x)
            return false;
        drop(f, x);
        f->stats.n_dropped++;
    }
    return true;
}

/* Marks a part as used now. Its file's time keeps that for later runs; it is changed by writing the first byte again,
 * since the sandbox does not allow setting times. A failure only affects which parts are dropped first. */
static void use(const struct prefix_files *f, struct part_node *x)
{
    struct path p = path_of(f, x->name);
    part_tree_use(x, now_ns());
    int fd = file_open(p.s, O_RDWR | O_NOFOLLOW, 0);
    char first;
    if (fd >= 0 && pread(fd, &first, 1, 0) == 1)
        (void)!file_write_at(fd, &first, 1, 0);
    if (fd >= 0)
        close(fd);
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

/* Makes the node of a part from its file; it is in no tree yet. */
static err_code read_node(const char *path, struct part_node *x, struct err *e)
{
    moebius_part part;
    moebius_error error;
    if (moebius_part_read(path, &part, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    x->from = part.from;
    x->n_tok = part.n_tok;
    x->hash_before = part.hash_before;
    x->hash = part.hash;
    x->n_bytes = (uint64_t)part.n_bytes;
    int64_t n = part.n_tok - part.from;
    if (n <= 0)
        return err_set(e, ERR_FORMAT, "%s: a part without tokens", path);
    x->ids = mem_calloc((size_t)n, sizeof *x->ids);
    if (!x->ids)
        return err_nomem(e, (size_t)n * sizeof *x->ids, path);
    if (moebius_part_tokens(path, x->ids, n, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    return ERR_OK;
}

/* *out is NULL if the file is invalid, and then removed, or if it can't be read now. */
static err_code take_file(const struct prefix_files *f, const char *name, struct part_node **out, struct err *e)
{
    struct path p = path_of(f, name);
    struct stat st;
    struct err why = {0};
    struct part_node *x = *out = mem_calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, p.s);
    snprintf(x->name, sizeof x->name, "%.*s", (int)sizeof x->name - 1, name);
    err_code code = stat(p.s, &st) == 0 ? read_node(p.s, x, &why) : err_set(&why, ERR_IO, "%s", strerror(errno));
    if (code == ERR_OK) {
        x->used_ns = st.st_mtim.tv_sec * (int64_t)1000000000 + st.st_mtim.tv_nsec;
        return ERR_OK;
    }
    part_node_free(x);
    *out = NULL;
    if (code == ERR_NOMEM)
        return err_set(e, code, "%s", why.text);
    log_line(f->log, LOG_WARN, "the state of a text is left out: %s", why.text);
    if (code != ERR_IO)
        remove_file(f, name);
    return ERR_OK;
}

/* Reads all parts in the folder, nodes[n], whether the parts that they continue are there or not. */
struct found {
    struct part_node **nodes;
    size_t n, capacity;
};

static err_code add_found(struct found *x, struct part_node *node, struct err *e)
{
    err_code code = mem_grow(&x->nodes, &x->capacity, x->n + 1, sizeof *x->nodes, "parts of texts", e);
    if (code == ERR_OK)
        x->nodes[x->n++] = node;
    else
        part_node_free(node);
    return code;
}

static err_code read_folder(const struct prefix_files *f, DIR *dir, struct found *out, struct err *e)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry)
            return errno ? err_set(e, ERR_IO, "%s: %s", f->dir, strerror(errno)) : ERR_OK;
        struct part_node *node = NULL;
        if (is_unfinished_name(entry->d_name))
            remove_file(f, entry->d_name);
        else if (is_part_name(entry->d_name))
            TRY(take_file(f, entry->d_name, &node, e));
        if (node)
            TRY(add_found(out, node, e));
    }
}

static err_code take_folder(struct prefix_files *f, struct err *e)
{
    struct found found = {0};
    DIR *dir = opendir(f->dir);
    if (!dir)
        return err_set(e, ERR_IO, "%s: %s", f->dir, strerror(errno));
    err_code code = read_folder(f, dir, &found, e);
    closedir(dir);
    if (code == ERR_OK && found.n > 0) {
        found.n = part_tree_link(&f->tree, found.nodes, found.n);
        for (size_t i = 0; i < found.n; i++)
            remove_file(f, found.nodes[i]->name);
    }
    for (size_t i = 0; i < found.n; i++)
        part_node_free(found.nodes[i]);
    mem_free(found.nodes);
    return code;
}

static err_code open_folder(struct prefix_files *f, const char *dir, struct err *e)
{
    struct path lock;
    f->dir = mem_strdup(dir);
    if (!f->dir)
        return err_nomem(e, strlen(dir), dir);
    if (strlen(dir) + 2 * PART_NAME_BYTES > sizeof lock.s)
        return err_set(e, ERR_USAGE, "%s: a path of %zu bytes is too long", dir, strlen(dir));
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    lock = path_of(f, lock_name);
    TRY(file_open_locked(lock.s, LOCK_WAIT_MS, &f->lock, e));
    TRY(take_folder(f, e));
    (void)make_room(f, 0, NULL);
    return ERR_OK;
}

err_code prefix_files_open(struct prefix_files **out, const char *dir, uint64_t max_bytes, const struct log *log,
                           struct err *e)
{
    struct prefix_files *f = *out = mem_calloc(1, sizeof *f);
    if (!f)
        return err_nomem(e, sizeof *f, dir);
    f->max_bytes = max_bytes;
    f->log = log;
    f->lock = -1;
    err_code code = open_folder(f, dir, e);
    if (code != ERR_OK)
        prefix_files_close(out);
    return code;
}

void prefix_files_close(struct prefix_files **files)
{
    struct prefix_files *f = *files;
    if (!f)
        return;
    part_tree_close(&f->tree);
    if (f->lock >= 0)
        close(f->lock);
    mem_free(f->dir);
    mem_free(f);
    *files = NULL;
}

/* ---- use ----------------------------------------------------------------------------------------------------- */

/* The part with the most tokens in common with a text. */
static struct part_node *find(const struct prefix_files *f, const moebius_session *like, const int32_t *ids, size_t n,
                              bool is_whole, size_t *n_same)
{
    uint64_t key;
    *n_same = 0;
    if (moebius_session_part_key(like, &key, NULL) != MOEBIUS_OK)
        return NULL;
    return part_tree_find(&f->tree, key, ids, n, is_whole, n_same);
}

size_t prefix_files_find(const struct prefix_files *f, const moebius_session *like, const int32_t *ids, size_t n)
{
    size_t n_same;
    (void)find(f, like, ids, n, !moebius_session_goes_back(like), &n_same);
    return n_same;
}

bool prefix_files_load(struct prefix_files *f, moebius_session *session, const int32_t *ids, size_t n)
{
    moebius_error error;
    size_t n_same;
    int64_t pos = moebius_session_pos(session);
    struct part_node *x = find(f, session, ids, n, !moebius_session_goes_back(session), &n_same);
    while (x && x->from > pos)
        x = x->parent;
    if (!x || x->from != pos)
        return false;
    struct path p = path_of(f, x->name);
    moebius_status status = moebius_session_load_part(session, p.s, &error);
    if (status == MOEBIUS_LIMIT || status == MOEBIUS_NOMEM)
        return false;
    if (status != MOEBIUS_OK) {
        log_line(f->log, LOG_WARN, "the state of a text is left out: %s", error.text);
        if (status == MOEBIUS_IO && access(p.s, F_OK) == 0) /* the file may be good */
            return false;
        drop(f, x);
        return true; /* there may be another way */
    }
    use(f, x);
    f->stats.n_read++;
    if (moebius_session_pos(session) > (int64_t)n_same)
        (void)moebius_session_truncate(session, (int64_t)n_same);
    return moebius_session_pos(session) < (int64_t)n_same;
}

int64_t prefix_part_tokens(int64_t one_bytes, int64_t n_bytes, int64_t n)
{
    const int64_t more_bytes = n_bytes - one_bytes;
    if (more_bytes <= 0 || n <= 0)
        return INT64_MAX;
    return one_bytes <= more_bytes ? n : (int64_t)((double)one_bytes / (double)more_bytes * (double)n);
}

/* Where the part from `from` on ends. */
static int64_t choose_end(const moebius_session *s, int64_t from, int64_t n)
{
    int64_t end = moebius_session_part_end(s, from, min_i64(from + PREFIX_PART_TOKENS, n));
    int64_t one = moebius_session_part_bytes(s, from, from + 1), all = moebius_session_part_bytes(s, from, end);
    int64_t n_part = prefix_part_tokens(one, all, end - from);
    return n_part <= end - from ? end : moebius_session_part_end(s, from, n_part < n - from ? from + n_part : n);
}

/* Writes a new part of a session that continues `parent`; NULL: it can't be written. */
static struct part_node *write_part(struct prefix_files *f, moebius_session *s, struct part_node *parent, int64_t to,
                                    struct err *e)
{
    moebius_error error;
    struct part_node *x = mem_calloc(1, sizeof *x);
    if (!x || make_name(x->name, e) != ERR_OK) {
        mem_free(x);
        return NULL;
    }
    struct path p = path_of(f, x->name);
    moebius_status status = moebius_session_save_part(s, parent ? parent->n_tok : 0, to, p.s, &error);
    if (status == MOEBIUS_OK && read_node(p.s, x, e) == ERR_OK)
        return x;
    if (status != MOEBIUS_OK)
        err_adopt(e, &error);
    remove_file(f, x->name);
    part_node_free(x);
    return NULL;
}

bool prefix_files_save(struct prefix_files *f, moebius_session *session, size_t n)
{
    struct err e = {0};
    size_t from;
    n = n < (size_t)moebius_session_pos(session) ? n : (size_t)moebius_session_pos(session);
    struct part_node *parent = find(f, session, moebius_session_tokens(session), n, true, &from);
    if (n < from + PREFIX_LEAST_TOKENS || (f->pause_ns && clock_ns() < f->pause_ns))
        return false;
    int64_t to = choose_end(session, (int64_t)from, (int64_t)n);
    if (!make_room(f, (uint64_t)moebius_session_part_bytes(session, (int64_t)from, to), parent))
        return false;
    struct part_node *x = write_part(f, session, parent, to, &e);
    if (!x) {
        log_line(f->log, LOG_WARN, "the state of texts is not written for a minute: %s", e.text);
        f->pause_ns = clock_ns() + retry_ns;
        return false;
    }
    part_tree_add(&f->tree, parent, x);
    part_tree_use(x, now_ns());
    f->stats.n_written++;
    return true;
}

struct prefix_files_stats prefix_files_stats(const struct prefix_files *f)
{
    struct prefix_files_stats s = f->stats;
    s.n_bytes = f->tree.n_bytes;
    s.n_parts = f->tree.n;
    return s;
}
