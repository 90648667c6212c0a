#define _POSIX_C_SOURCE 200809L
#include "server/call_replay.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file_io.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/siphash.h"

/* The last tokens of a prompt may differ when its answer comes back as a message, for example because the template
 * began reasoning that the client did not return. So many of them are kept with the answer, and need not be the same.
 */
enum { N_TAIL = 16 };

enum { MAX_CALLS = 4096, MAX_IDS = 1 << 20 /* some 40 MB */, MAX_FILE_BYTES = 256 << 20 };

struct replay {
    pthread_mutex_t lock;
    json_t *answers; /* the answer of each call's id, oldest first */
    size_t n_ids;    /* tokens of all answers, counted once for each of their calls */
    uint64_t fingerprint;
    char *path; /* NULL: there is no file */
    int fd;     /* of the file, opened for appending; -1: none */
};

/* An answer is kept as {"model", "n_prompt", "before", "tail", "ids", "message"}, in memory and as a line of the file.
 * `tail` are the prompt's last tokens, N_TAIL at most, and `before` is a hash of the tokens before them. */

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* The hash need not resist attacks: whoever finds a collision only gets back tokens of an answer whose call id they
 * know.
 */
static void hash_text(const int32_t *ids, size_t n, char text[17])
{
    const struct siphash_key key = {0};
    snprintf(text, 17, "%016llx", (unsigned long long)siphash13(key, ids, n * sizeof *ids));
}

static json_t *id_array(const int32_t *ids, size_t n)
{
    json_t *all = json_array();
    bool good = all != NULL;
    for (size_t i = 0; i < n && good; i++)
        good = json_array_append_new(all, json_integer(ids[i])) == 0;
    if (good)
        return all;
    json_decref(all);
    return NULL;
}

static int32_t id_at(const json_t *ids, size_t i)
{
    return (int32_t)json_integer_value(json_array_get(ids, i));
}

static bool is_id_array(const json_t *ids)
{
    bool good = json_is_array(ids);
    for (size_t i = 0; good && i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        good = json_is_integer(json_array_get(ids, i)) && id >= 0 && id <= INT32_MAX;
    }
    return good;
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static json_t *calls_of(const json_t *message)
{
    return json_object_get(message, "tool_calls");
}

static const char *id_of(const json_t *call)
{
    return json_string_value(json_object_get(call, "id"));
}

/* Tokens of the answer that is kept for a call. */
static size_t n_ids_of(const struct replay *r, const char *id)
{
    return json_array_size(json_object_get(json_object_get(r->answers, id), "ids"));
}

/* Drops the oldest call; false: there is no memory. */
static bool drop_oldest(struct replay *r)
{
    const char *key = json_object_iter_key(json_object_iter(r->answers));
    char *copy = key ? mem_strdup(key) : NULL;
    size_t n = copy ? n_ids_of(r, copy) : 0;
    bool is_gone = copy && json_object_del(r->answers, copy) == 0;
    r->n_ids -= is_gone ? n : 0;
    mem_free(copy);
    return is_gone;
}

/* Keeps an answer under the ids of all its calls, and drops the oldest ones beyond the bounds. False: no memory. */
static bool keep(struct replay *r, json_t *answer)
{
    size_t i;
    json_t *call;
    json_array_foreach(calls_of(json_object_get(answer, "message")), i, call)
    {
        size_t n_before = id_of(call) ? n_ids_of(r, id_of(call)) : 0;
        if (!id_of(call) || json_object_set(r->answers, id_of(call), answer) != 0)
            return false;
        r->n_ids += n_ids_of(r, id_of(call)) - n_before;
        while (json_object_size(r->answers) > MAX_CALLS || (r->n_ids > MAX_IDS && json_object_size(r->answers) > 1))
            if (!drop_oldest(r))
                return false;
    }
    return true;
}

static bool is_answer(const struct replay *r, const json_t *answer)
{
    const char *model = json_string_value(json_object_get(answer, "model"));
    char fingerprint[17];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)r->fingerprint);
    const json_t *n_prompt = json_object_get(answer, "n_prompt"), *tail = json_object_get(answer, "tail");
    const json_t *ids = json_object_get(answer, "ids");
    return model && !strcmp(model, fingerprint) && json_is_integer(n_prompt) && is_id_array(tail) &&
           json_array_size(tail) <= N_TAIL && json_integer_value(n_prompt) >= (json_int_t)json_array_size(tail) &&
           is_id_array(ids) && json_array_size(ids) > 0 && json_is_string(json_object_get(answer, "before"));
}

static json_t *make_answer(const struct replay *r, const struct replay_answer *a)
{
    size_t n_tail = a->n_prompt < N_TAIL ? a->n_prompt : N_TAIL, n_before = a->n_prompt - n_tail;
    char model[17], before[17];
    snprintf(model, sizeof model, "%016llx", (unsigned long long)r->fingerprint);
    hash_text(a->ids, n_before, before);
    return json_pack("{s:s, s:I, s:s, s:o, s:o, s:o}", "model", model, "n_prompt", (json_int_t)a->n_prompt, "before",
                     before, "tail", id_array(a->ids + n_before, n_tail), "ids",
                     id_array(a->ids + a->n_prompt, a->n_answer), "message", json_deep_copy(a->message));
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static bool add_line(struct bytes *b, const json_t *answer)
{
    struct err e;
    char *line = json_write(answer, JSON_COMPACT, NULL);
    bool good = line && bytes_add_text(b, line, &e) == ERR_OK && bytes_add_text(b, "\n", &e) == ERR_OK;
    mem_free(line);
    return good;
}

/* Keeps the file's answers of this model. Broken lines are skipped, such as the last one of a server that was killed.
 */
static void read_lines(struct replay *r, const char *text, size_t n)
{
    for (const char *line = text, *end; line < text + n; line = end + 1) {
        json_error_t error;
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end)
            break;
        json_t *answer = json_read(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, &error);
        if (is_answer(r, answer))
            (void)keep(r, answer);
        json_decref(answer);
    }
}

/* Keeps only the last lines of a file that has grown too long. */
static err_code shorten_file(struct replay *r, off_t n_all, struct err *e)
{
    enum { N_LEFT = MAX_FILE_BYTES / 2 };
    char *text = mem_alloc(N_LEFT);
    if (!text)
        return err_nomem(e, N_LEFT, r->path);
    const bool is_read = pread(r->fd, text, N_LEFT, n_all - N_LEFT) == N_LEFT;
    const char *line = is_read ? memchr(text, '\n', N_LEFT) : NULL; /* the first whole line follows it */
    const size_t n = line ? (size_t)(text + N_LEFT - line) : 0;
    const bool good = is_read && ftruncate(r->fd, 0) == 0 && (n == 0 || file_write(r->fd, line, n));
    mem_free(text);
    return good ? ERR_OK : err_set(e, ERR_IO, "%s: it can't be shortened", r->path);
}

static err_code read_file(struct replay *r, struct err *e)
{
    struct stat st;
    if (fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a plain file", r->path);
    if (st.st_size > MAX_FILE_BYTES) {
        TRY(shorten_file(r, st.st_size, e));
        if (fstat(r->fd, &st) != 0)
            return err_set(e, ERR_IO, "%s: %s", r->path, strerror(errno));
    }
    char *text = mem_alloc((size_t)st.st_size + 1);
    if (!text)
        return err_nomem(e, (size_t)st.st_size, r->path);
    ssize_t n = pread(r->fd, text, (size_t)st.st_size, 0);
    read_lines(r, text, n > 0 ? (size_t)n : 0);
    mem_free(text);
    return n < 0 ? err_set(e, ERR_IO, "%s: it can't be read", r->path) : ERR_OK;
}

/* Appends with a single write, so that a server that is killed leaves whole lines and at most one broken one. */
static err_code append_line(struct replay *r, const json_t *answer, struct err *e)
{
    struct bytes line = {0};
    if (r->fd < 0)
        return ERR_OK;
    err_code code = bytes_add_text(&line, "\n", e); /* ends a broken line that a killed server may have left */
    if (code == ERR_OK && !add_line(&line, answer))
        code = err_nomem(e, 0, "an answer");
    if (code == ERR_OK && !file_write(r->fd, line.s, line.n))
        code = err_set(e, ERR_IO, "%s: it can't be written", r->path);
    bytes_close(&line);
    return code;
}

/* ---- finding the answer that a message was ---------------------------------------------------------------------- */

/* A string that holds JSON counts as what it holds; owned by the caller. */
static json_t *value_of(const json_t *arguments)
{
    json_error_t error;
    const char *text = json_string_value(arguments);
    json_t *value =
        text ? json_read(text, json_string_length(arguments), JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error) : NULL;
    return value ? value : json_deep_copy(arguments);
}

static bool is_same_call(const json_t *a, const json_t *b)
{
    const json_t *f = json_object_get(a, "function"), *g = json_object_get(b, "function");
    if (!json_equal(json_object_get(a, "id"), json_object_get(b, "id")) ||
        !json_equal(json_object_get(f, "name"), json_object_get(g, "name")))
        return false;
    json_t *x = value_of(json_object_get(f, "arguments")), *y = value_of(json_object_get(g, "arguments"));
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

static bool is_same_text(const json_t *a, const json_t *b)
{
    static const char space[] = " \t\r\n";
    const char *s = json_string_value(a), *t = json_string_value(b);
    s = s ? s + strspn(s, space) : "";
    t = t ? t + strspn(t, space) : "";
    while (*s && *s == *t) {
        s++;
        t++;
    }
    return !s[strspn(s, space)] && !t[strspn(t, space)];
}

static bool is_same_message(const json_t *a, const json_t *b)
{
    const json_t *x = calls_of(a), *y = calls_of(b);
    bool same = json_array_size(x) == json_array_size(y) &&
                is_same_text(json_object_get(a, "content"), json_object_get(b, "content"));
    for (size_t i = 0; i < json_array_size(x) && same; i++)
        same = is_same_call(json_array_get(x, i), json_array_get(y, i));
    return same;
}

/* Whether this message comes for the first time. A conversation has each answer once, and searching for its turn again
 * would cost as much as hashing the whole prompt. */
static bool is_new(json_t *met, const json_t *message)
{
    const char *id = id_of(json_array_get(calls_of(message), 0));
    return id && !json_object_get(met, id) && json_object_set_new(met, id, json_true()) == 0;
}

/* The kept answer that a message repeats; NULL: there is none. Borrowed. */
static json_t *find_answer(const struct replay *r, const json_t *message)
{
    const char *id = id_of(json_array_get(calls_of(message), 0));
    json_t *answer = id ? json_object_get(r->answers, id) : NULL;
    return answer && is_same_message(json_object_get(answer, "message"), message) ? answer : NULL;
}

/* ---- replacing tokens ------------------------------------------------------------------------------------------- */

/* Finds the answer's turn in a prompt: tokens [begin, end). False: the prompt does not have it. */
static bool find_turn(const json_t *answer, const int32_t *ids, size_t n, size_t *begin, size_t *end)
{
    const json_t *tail = json_object_get(answer, "tail"), *sampled = json_object_get(answer, "ids");
    size_t n_prompt = (size_t)json_integer_value(json_object_get(answer, "n_prompt")), n_tail = json_array_size(tail);
    char before[17];
    if (n_prompt - n_tail > n)
        return false;
    hash_text(ids, n_prompt - n_tail, before);
    if (strcmp(before, json_string_value(json_object_get(answer, "before"))) != 0)
        return false;
    *begin = n_prompt - n_tail;
    size_t same = 0;
    while (same < n_tail && *begin + same < n && ids[*begin + same] == id_at(tail, same))
        same++;
    int32_t last = id_at(sampled, json_array_size(sampled) - 1);
    for (size_t i = same; i < n_tail; i++)
        if (id_at(tail, i) == last) /* the turn before it differs, so the next end of a turn is not this answer's */
            return false;
    for (*end = *begin + same; *end < n && ids[*end] != last; ++*end)
        ;
    return (*end)++ < n;
}

/* Replaces tokens [begin, end) by the prompt's tail and the sampled tokens. */
static err_code put(const json_t *answer, size_t begin, size_t end, int32_t **ids, size_t *n, struct err *e)
{
    const json_t *tail = json_object_get(answer, "tail"), *sampled = json_object_get(answer, "ids");
    size_t n_tail = json_array_size(tail), n_sampled = json_array_size(sampled);
    size_t n_new = begin + n_tail + n_sampled + (*n - end);
    int32_t *all = mem_calloc(n_new, sizeof *all), *at = all;
    if (!all)
        return err_nomem(e, n_new * sizeof *all, "a prompt");
    memcpy(at, *ids, begin * sizeof *at);
    at += begin;
    for (size_t i = 0; i < n_tail; i++)
        *at++ = id_at(tail, i);
    for (size_t i = 0; i < n_sampled; i++)
        *at++ = id_at(sampled, i);
    memcpy(at, *ids + end, (*n - end) * sizeof *at);
    mem_free(*ids);
    *ids = all;
    *n = n_new;
    return ERR_OK;
}

err_code replay_apply(struct replay *r, const json_t *messages, int32_t **ids, size_t *n, struct err *e)
{
    size_t i, begin, end;
    json_t *message, *met = json_object();
    err_code code = met ? ERR_OK : err_nomem(e, json_array_size(messages), "a prompt");
    pthread_mutex_lock(&r->lock);
    json_array_foreach(messages, i, message)
    {
        const json_t *answer = find_answer(r, message);
        if (answer && is_new(met, message) && code == ERR_OK && find_turn(answer, *ids, *n, &begin, &end))
            code = put(answer, begin, end, ids, n, e);
    }
    pthread_mutex_unlock(&r->lock);
    json_decref(met);
    return code;
}

err_code replay_add(struct replay *r, const struct replay_answer *a, struct err *e)
{
    if (a->n_answer == 0 || json_array_size(calls_of(a->message)) == 0)
        return ERR_OK;
    json_t *answer = make_answer(r, a);
    if (!answer)
        return err_nomem(e, 0, "an answer");
    pthread_mutex_lock(&r->lock);
    err_code code = keep(r, answer) ? append_line(r, answer, e) : err_nomem(e, 0, "an answer");
    pthread_mutex_unlock(&r->lock);
    json_decref(answer);
    return code;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static err_code open_file(struct replay *r, const char *path, struct err *e)
{
    if (!path)
        return ERR_OK;
    r->path = mem_strdup(path);
    if (!r->path)
        return err_nomem(e, strlen(path), "a path");
    r->fd = file_open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (r->fd < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return read_file(r, e);
}

err_code replay_open(struct replay **out, const char *path, uint64_t fingerprint, struct err *e)
{
    struct replay *r = *out = mem_calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, sizeof *r, "kept answers");
    *r = (struct replay){.fd = -1, .fingerprint = fingerprint, .answers = json_object()};
    pthread_mutex_init(&r->lock, NULL);
    err_code code = r->answers ? open_file(r, path, e) : err_nomem(e, 0, "kept answers");
    if (code != ERR_OK)
        replay_close(out);
    return code;
}

void replay_close(struct replay **replay)
{
    struct replay *r = *replay;
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    pthread_mutex_destroy(&r->lock);
    json_decref(r->answers);
    mem_free(r->path);
    mem_free(r);
    *replay = NULL;
}
