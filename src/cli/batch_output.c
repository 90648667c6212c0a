#define _POSIX_C_SOURCE 200809L
#include "cli/batch_output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "cli/batch_request.h"
#include "base/json_text.h"
#include "cli/line_reader.h"

enum { MAX_LINE_BYTES = 1 << 30 };

/* ---- what is there ------------------------------------------------------------------------------------------- */

/* The key of a request that was not answered, so that it belongs to one line. Owned by the caller. */
static char *line_key(const char *key, int64_t line)
{
    return mem_print("%s@%" PRId64, key, line);
}

/* Notes which request a line of the file answers. */
static err_code note(struct batch_output *o, const json_t *answer, struct err *e)
{
    const json_t *line = json_object_get(answer, "line");
    char *key = batch_request_key(json_object_get(answer, "id"));
    char *full = key && line ? line_key(key, json_integer_value(line)) : NULL;
    bool good = key && (!line || full) && json_object_set_new(o->done, full ? full : key, json_true()) == 0;
    mem_free(full);
    mem_free(key);
    o->n_done += good;
    return good ? ERR_OK : err_nomem(e, 0, "the requests that are done");
}

static err_code note_line(struct batch_output *o, const struct line *line, int64_t number, struct err *e)
{
    json_error_t error;
    json_t *answer = line->text ? json_read(line->text, line->n, JSON_ALLOW_NUL, &error) : NULL;
    bool good = json_object_get(answer, "id") && json_object_get(answer, "finish_reason");
    err_code code = good
                        ? note(o, answer, e)
                        : err_set(e, ERR_FORMAT,
                                  "%s: line %" PRId64 " is no answer of an earlier run: expected an object with id and "
                                  "finish_reason, or a new file",
                                  o->path, number);
    json_decref(answer);
    return code;
}

/* Whether a last line without its newline is the beginning of an answer, which may be cut off. */
static bool is_torn(const struct line *line)
{
    static const char begin[] = "{\"id\":";
    size_t n = line->n < sizeof begin - 1 ? line->n : sizeof begin - 1;
    return line->text && !memcmp(line->text, begin, n);
}

static err_code read_lines(struct batch_output *o, struct line_reader *r, struct err *e)
{
    struct line line;
    enum line_status status;
    for (int64_t number = 1;; number++) {
        TRY(line_reader_next(r, true, &line, &status, e));
        if (status == LINE_NO_MORE || (!line.is_whole && is_torn(&line)))
            return ERR_OK;
        TRY(note_line(o, &line, number, e));
        o->n_bytes += (int64_t)line.n + line.is_whole;
    }
}

/* Truncates the file after its last whole line. */
static bool cut(const struct batch_output *o)
{
    return ftruncate(o->fd, o->n_bytes) == 0 && lseek(o->fd, o->n_bytes, SEEK_SET) == o->n_bytes;
}

static err_code resume(struct batch_output *o, struct err *e)
{
    struct line_reader r;
    line_reader_from(&r, o->fd, o->path, MAX_LINE_BYTES);
    err_code code = read_lines(o, &r, e);
    line_reader_close(&r);
    TRY(code);
    return cut(o) ? ERR_OK : err_set(e, ERR_IO, "%s: %s", o->path, strerror(errno));
}

/* ---- writing ------------------------------------------------------------------------------------------------- */

err_code batch_output_open(struct batch_output *o, const char *path, struct err *e)
{
    *o = (struct batch_output){.fd = -1, .done = json_object()};
    if (!o->done)
        return err_nomem(e, 0, "the requests that are done");
    TRY(output_file_target(path, &o->path, e));
    if (!o->path)
        return output_file_open(&o->file, path, e);
    TRY(file_open_locked(o->path, 0, &o->fd, e));
    return resume(o, e);
}

bool batch_output_has_answer(const struct batch_output *o, const char *key)
{
    return json_object_get(o->done, key) != NULL;
}

bool batch_output_has_failure(const struct batch_output *o, const char *key, int64_t line)
{
    char *full = line_key(key, line);
    bool has = full && json_object_get(o->done, full);
    mem_free(full);
    return has;
}

static err_code write_file(struct batch_output *o, const char *text, size_t n, struct err *e)
{
    if (file_write(o->fd, text, n)) {
        o->n_bytes += (int64_t)n;
        return ERR_OK;
    }
    err_code code = err_set(e, ERR_IO, "%s: %s", o->path, strerror(errno));
    (void)cut(o); /* if this fails, the next run does it */
    return code;
}

static err_code write_stream(struct batch_output *o, const char *text, size_t n, struct err *e)
{
    if (fwrite(text, 1, n, o->file.stream) == n && fflush(o->file.stream) == 0)
        return ERR_OK;
    return output_file_finish(&o->file, e); /* it reports why */
}

err_code batch_output_write(struct batch_output *o, const json_t *answer, struct err *e)
{
    size_t n;
    char *text = json_write(answer, JSON_COMPACT, &n);
    if (!text)
        return err_nomem(e, 0, "an answer");
    text[n] = '\n'; /* where the NUL was */
    err_code code = o->path ? write_file(o, text, n + 1, e) : write_stream(o, text, n + 1, e);
    mem_free(text);
    return code;
}

err_code batch_output_finish(struct batch_output *o, struct err *e)
{
    if (!o->path)
        return output_file_finish(&o->file, e);
    return file_sync(o->fd) ? ERR_OK : err_set(e, ERR_IO, "%s: %s", o->path, strerror(errno));
}

void batch_output_close(struct batch_output *o)
{
    if (!o->done)
        return;
    if (o->fd >= 0)
        close(o->fd);
    if (!o->path)
        output_file_abandon(&o->file);
    mem_free(o->path);
    json_decref(o->done);
    *o = (struct batch_output){0};
}
