#define _POSIX_C_SOURCE 200809L
#include "cli/line_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "cli/interrupt.h"

enum { READ_BYTES = 65536 };

void line_reader_from(struct line_reader *r, int fd, const char *name, size_t max_bytes)
{
    *r = (struct line_reader){.name = name, .max_bytes = max_bytes, .fd = fd};
}

err_code line_reader_open(struct line_reader *r, const char *path, size_t max_bytes, struct err *e)
{
    bool is_stdin = !strcmp(path, "-");
    line_reader_from(r, is_stdin ? STDIN_FILENO : file_open(path, O_RDONLY, 0), path, max_bytes);
    r->owns_fd = !is_stdin;
    struct stat st;
    if (r->fd >= 0 && fstat(r->fd, &st) == 0 && S_ISDIR(st.st_mode)) /* opening a folder works; only reading fails */
        return err_set(e, ERR_IO, "%s: %s", path, strerror(EISDIR));
    return r->fd >= 0 ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

void line_reader_close(struct line_reader *r)
{
    if (r->owns_fd && r->fd >= 0)
        close(r->fd);
    mem_free(r->buf);
    *r = (struct line_reader){0};
}

/* Makes room after the bytes that are held, including one for a NUL. */
static err_code make_room(struct line_reader *r, struct err *e)
{
    if (r->at)
        memmove(r->buf, r->buf + r->at, r->end - r->at);
    r->end -= r->at;
    r->at = 0;
    return mem_grow(&r->buf, &r->capacity, r->end + READ_BYTES + 1, 1, r->name, e);
}

/* Sets *is_there to whether there is something to read, or the input has ended; may_wait: waits until then. */
static err_code wait_for_input(const struct line_reader *r, bool may_wait, bool *is_there, struct err *e)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    int n;
    do
        n = poll(&p, 1, may_wait ? -1 : 0);
    while (n < 0 && errno == EINTR && !cli_interrupted());
    *is_there = n > 0;
    if (n >= 0)
        return ERR_OK;
    return errno == EINTR ? err_set(e, ERR_CANCELLED, "interrupted")
                          : err_set(e, ERR_IO, "%s: %s", r->name, strerror(errno));
}

static err_code read_more(struct line_reader *r, struct err *e)
{
    ssize_t n;
    TRY(make_room(r, e));
    do
        n = read(r->fd, r->buf + r->end, r->capacity - r->end - 1);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_set(e, ERR_IO, "%s: %s", r->name, strerror(errno));
    r->is_over = n == 0;
    r->end += (size_t)n;
    return ERR_OK;
}

/* Hands out n bytes, and skips `skip` more. */
static enum line_status give(struct line_reader *r, size_t n, size_t skip, struct line *line)
{
    bool is_long = r->is_long || n > r->max_bytes;
    char *text = r->buf + r->at;
    text[n] = '\0';
    *line = (struct line){.text = is_long ? NULL : text, .n = is_long ? 0 : n, .is_whole = skip > 0};
    r->at += n + skip;
    r->is_long = false;
    return LINE_READ;
}

/* Drops what was read so far of a line that is too long. */
static void drop_long(struct line_reader *r)
{
    if (r->end - r->at <= r->max_bytes)
        return;
    r->is_long = true;
    r->at = r->end;
}

err_code line_reader_next(struct line_reader *r, bool may_wait, struct line *line, enum line_status *status,
                          struct err *e)
{
    for (;;) {
        size_t n = r->end - r->at;
        const char *newline = n ? memchr(r->buf + r->at, '\n', n) : NULL;
        bool is_there = false;
        if (newline) {
            *status = give(r, (size_t)(newline - r->buf) - r->at, 1, line);
            return ERR_OK;
        }
        if (r->is_over) {
            *status = n || r->is_long ? give(r, n, 0, line) : LINE_NO_MORE;
            return ERR_OK;
        }
        drop_long(r);
        *status = LINE_NOT_YET;
        TRY(wait_for_input(r, may_wait, &is_there, e));
        if (!is_there)
            return ERR_OK;
        TRY(read_more(r, e));
    }
}

bool line_is_blank(const struct line *line)
{
    return line->text && line->n == strspn(line->text, " \t\r");
}
