#define _POSIX_C_SOURCE 200809L
#include "engine/receipts_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "engine/cache_file.h"

err_code receipts_path(char **path, struct err *e)
{
    return cache_file_path("receipts.jsonl", path, e);
}

/* The lines of the file: those that can be read and what they say, and those that can't. */
struct lines {
    char *text; /* owned */
    size_t n_text;
    struct line {
        const char *s; /* within text, or a line that is added */
        size_t n;
    } * good, *bad;       /* [n_good], [n_bad] */
    struct receipt *list; /* [n_good] */
    size_t n_good, n_bad;
    struct err why; /* of the first damaged line */
};

static void close_lines(struct lines *l)
{
    mem_free(l->text);
    mem_free(l->good);
    mem_free(l->bad);
    mem_free(l->list);
    *l = (struct lines){0};
}

static err_code take_line(struct lines *l, const char *path, struct line line, size_t number, struct err *e)
{
    char name[512];
    struct err why;
    snprintf(name, sizeof name, "%s, line %zu", path, number);
    err_code code = receipt_parse(&l->list[l->n_good], line.s, line.n, name, &why);
    if (code == ERR_OK) {
        l->good[l->n_good++] = line;
    } else if (code == ERR_FORMAT) {
        if (l->n_bad == 0)
            l->why = why;
        l->bad[l->n_bad++] = line;
    } else {
        return err_set(e, code, "%s", why.text);
    }
    return ERR_OK;
}

/* A file that is not there has no lines. Close them after a failure, too. */
static err_code read_lines(struct lines *l, const char *path, struct err *e)
{
    size_t n = 1, number = 0;
    TRY(cache_file_read(path, &l->text, &l->n_text, e));
    for (size_t i = 0; i < l->n_text; i++)
        n += l->text[i] == '\n';
    l->good = mem_calloc(n, sizeof *l->good);
    l->bad = mem_calloc(n, sizeof *l->bad);
    l->list = mem_calloc(n, sizeof *l->list);
    if (!l->good || !l->bad || !l->list)
        return err_nomem(e, n * sizeof *l->list, "receipts");
    for (size_t at = 0, end; at < l->n_text; at = end + 1) {
        const char *newline = memchr(l->text + at, '\n', l->n_text - at);
        end = newline ? (size_t)(newline - l->text) : l->n_text;
        number++;
        if (end > at)
            TRY(take_line(l, path, (struct line){l->text + at, end - at}, number, e));
    }
    return ERR_OK;
}

err_code receipts_load(const char *path, struct receipt **list, size_t *n, const struct log *log, struct err *e)
{
    struct lines l = {0};
    *list = NULL;
    *n = 0;
    err_code code = read_lines(&l, path, e);
    if (code == ERR_OK && l.n_bad)
        log_line(log, LOG_WARN, "%s; %zu such line%s passed over", l.why.text, l.n_bad, l.n_bad == 1 ? " is" : "s are");
    if (code == ERR_OK && l.n_good) {
        *list = l.list;
        *n = l.n_good;
        l.list = NULL;
    }
    close_lines(&l);
    return code;
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

/* Appends the damaged lines to PATH.damaged. The lock is held. */
static err_code set_aside(const struct lines *l, const char *path, const struct log *log, struct err *e)
{
    char *aside = mem_print("%s.damaged", path);
    if (!aside)
        return err_nomem(e, strlen(path), "a path");
    int fd = file_open(aside, O_WRONLY | O_CREAT | O_APPEND, 0666);
    bool ok = fd >= 0;
    for (size_t i = 0; ok && i < l->n_bad; i++)
        ok = file_write(fd, l->bad[i].s, l->bad[i].n) && file_write(fd, "\n", 1);
    err_code code = ok ? ERR_OK : err_set(e, ERR_IO, "%s: %s", aside, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (ok)
        log_line(log, LOG_WARN, "%s; %zu such line%s now in %s", l->why.text, l->n_bad, l->n_bad == 1 ? " is" : "s are",
                 aside);
    mem_free(aside);
    return code;
}

static err_code write_receipt(FILE *f, const struct receipt *r, struct err *e)
{
    char *line;
    TRY(receipt_write(r, &line, e));
    fprintf(f, "%s\n", line);
    mem_free(line);
    return ERR_OK;
}

static err_code write_all(struct output_file *f, const struct lines *l, const struct receipt *more, size_t n_more,
                          struct err *e)
{
    size_t kept = RECEIPTS_MAX > n_more ? RECEIPTS_MAX - n_more : 0, skip = l->n_good > kept ? l->n_good - kept : 0;
    for (size_t i = skip; i < l->n_good; i++)
        fprintf(f->stream, "%.*s\n", (int)l->good[i].n, l->good[i].s);
    for (size_t i = 0; i < n_more; i++)
        TRY(write_receipt(f->stream, &more[i], e));
    return ERR_OK;
}

err_code receipts_add(const char *path, const struct receipt *more, size_t n_more, const struct log *log, struct err *e)
{
    struct output_file f;
    struct lines l = {0};
    TRY(output_file_open_shared(&f, path, e));
    err_code code = read_lines(&l, path, e);
    if (code == ERR_OK && l.n_bad)
        code = set_aside(&l, path, log, e);
    if (code == ERR_OK)
        code = write_all(&f, &l, more, n_more, e);
    if (code == ERR_OK)
        code = output_file_finish(&f, e);
    else
        output_file_abandon(&f);
    close_lines(&l);
    return code;
}
