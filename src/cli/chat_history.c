#define _DEFAULT_SOURCE /* flock */
#include "cli/chat_history.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_text.h"
#include "base/mem.h"

enum { MAX_BYTES = 1 << 20 }; /* of the file; only the second half of a longer one is kept */

/* Creates the folder, and missing ones above it, accessible for its owner only. */
static bool make_folder(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    struct stat st;
    (void)mkdir(path, 0700);
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool folder_path(char *out, size_t n_bytes)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool given = state && *state == '/';
    if (!given && (!home || *home != '/'))
        return false;
    return (size_t)snprintf(out, n_bytes, "%s%s/moebius", given ? state : home, given ? "" : "/.local/state") < n_bytes;
}

/* Cuts a long file to its second half, beginning with a whole line. */
static void shorten(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX) != 0 || fstat(fd, &st) != 0 || st.st_size <= MAX_BYTES)
        return;
    char *text = mem_alloc(MAX_BYTES / 2);
    ssize_t n = text ? pread(fd, text, MAX_BYTES / 2, st.st_size - MAX_BYTES / 2) : -1;
    const char *line = n > 0 ? memchr(text, '\n', (size_t)n) : NULL;
    if (line && ftruncate(fd, 0) == 0) {
        size_t n_kept = (size_t)(text + n - line - 1);
        ssize_t n_written = write(fd, line + 1, n_kept); /* the reader skips lines that are cut */
        (void)n_written;
    }
    mem_free(text);
}

void chat_history_open(struct chat_history *h)
{
    char path[PATH_MAX - 16];
    *h = (struct chat_history){.fd = -1};
    if (!folder_path(path, sizeof path) || !make_folder(path))
        return;
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/chat_history", path);
    h->fd = open(file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (h->fd < 0)
        return;
    (void)fchmod(h->fd, 0600);
    shorten(h->fd);
    (void)flock(h->fd, LOCK_UN);
}

err_code chat_history_read(const struct chat_history *h, void (*fn)(void *user, const char *text), void *user,
                           struct err *e)
{
    struct stat st;
    if (h->fd < 0 || fstat(h->fd, &st) != 0 || st.st_size == 0)
        return ERR_OK;
    char *text = mem_alloc((size_t)st.st_size + 1);
    if (!text)
        return err_nomem(e, (size_t)st.st_size, "earlier messages");
    ssize_t n = pread(h->fd, text, (size_t)st.st_size, 0);
    text[n > 0 ? n : 0] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *message = json_loads(line, JSON_DECODE_ANY, NULL); /* damaged lines are skipped */
        if (json_is_string(message))
            fn(user, json_string_value(message));
        json_decref(message);
    }
    mem_free(text);
    return ERR_OK;
}

void chat_history_add(const struct chat_history *h, const char *text)
{
    size_t n = 0;
    json_t *message = h->fd >= 0 ? json_text(text, strlen(text)) : NULL;
    char *line = message ? json_write(message, JSON_ENCODE_ANY, &n) : NULL;
    if (line) {
        line[n] = '\n'; /* in place of the NUL: one write, so that sessions don't mix their lines */
        ssize_t n_written = write(h->fd, line, n + 1); /* the reader skips lines that are cut */
        (void)n_written;
    }
    mem_free(line);
    json_decref(message);
}

void chat_history_close(struct chat_history *h)
{
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
}
