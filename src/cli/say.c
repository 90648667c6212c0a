#define _POSIX_C_SOURCE 200809L
#include "cli/say.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json_text.h"
#include "base/mem.h"

enum { PIECE_BYTES = PIPE_BUF }; /* a pipe that polls as writable has room for so many */

static struct {
    pthread_mutex_t lock; /* guards what follows, and standard error */
    bool is_log, is_json;
    bool is_torn;  /* the last line was written only in part, for lack of room */
    size_t n_lost; /* lines lost since the last one that was written */
    int n_shown;   /* bytes of the progress line that is shown */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- making lines ------------------------------------------------------------------------------------------------ */

static char *make_object(enum log_level level, const char *text)
{
    char now[24];
    const time_t seconds = time(NULL);
    struct tm tm;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &tm));
    json_t *j = json_pack("{s:s, s:o, s:s}", "level", level == LOG_WARN ? "warning" : "info", "message",
                          json_text(text, strlen(text)), "time", now);
    char *line = j ? json_write(j, JSON_COMPACT, NULL) : NULL;
    json_decref(j);
    return line;
}

/* A line of the log without its newline; owned by the caller. NULL: there is no memory. */
static char *make_line(enum log_level level, const char *text)
{
    return state.is_json ? make_object(level, text) : mem_print("%s%s", level == LOG_WARN ? "warning: " : "", text);
}

/* ---- writing lines; with the lock -------------------------------------------------------------------------------- */

/* Whether everything was written; *n: how many bytes were. */
static bool write_now(const char *text, size_t *n)
{
    const size_t n_all = *n;
    for (*n = 0; *n < n_all;) {
        struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
        const size_t left = n_all - *n, piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
            return false;
        const ssize_t n_written = write(STDERR_FILENO, text + *n, piece);
        if (n_written <= 0)
            return false;
        *n += (size_t)n_written;
    }
    return true;
}

/* Replaces the final NUL by a newline. */
static bool write_line(char *line)
{
    size_t n_end = 1, n = strlen(line) + 1;
    if (state.is_torn && !write_now("\n", &n_end))
        return false;
    line[n - 1] = '\n';
    const bool is_whole = write_now(line, &n);
    state.is_torn = !is_whole && n > 0;
    return is_whole;
}

static void tell_lost(void)
{
    char text[96];
    snprintf(text, sizeof text, "nobody read the log: %zu of its lines are lost", state.n_lost);
    char *line = make_line(LOG_WARN, text);
    if (line && write_line(line))
        state.n_lost = 0;
    mem_free(line);
}

static void write_or_leave_out(char *line)
{
    if (state.n_lost)
        tell_lost();
    if (state.n_lost || !write_line(line))
        state.n_lost++;
}

static void clear_progress(void)
{
    if (state.n_shown)
        fprintf(stderr, "\r%*s\r", state.n_shown, "");
    state.n_shown = 0;
}

/* Takes over the line. */
static void put_line(char *line)
{
    if (!line)
        return;
    pthread_mutex_lock(&state.lock);
    clear_progress();
    if (state.is_log)
        write_or_leave_out(line);
    else
        fprintf(stderr, "%s\n", line);
    pthread_mutex_unlock(&state.lock);
    mem_free(line);
}

/* ---- saying ------------------------------------------------------------------------------------------------------ */

void say(enum log_level level, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    char *text = n >= 0 ? mem_alloc((size_t)n + 1) : NULL;
    if (text) {
        vsnprintf(text, (size_t)n + 1, fmt, again);
        put_line(make_line(level, text));
    }
    va_end(again);
    va_end(args);
    mem_free(text);
}

void say_line(const char *line)
{
    put_line(mem_strdup(line));
}

void say_progress(const char *fmt, ...)
{
    va_list args;
    if (!isatty(STDERR_FILENO))
        return;
    pthread_mutex_lock(&state.lock);
    fputc('\r', stderr);
    va_start(args, fmt);
    int n = vfprintf(stderr, fmt, args);
    va_end(args);
    if (n < state.n_shown)
        fprintf(stderr, "%*s", state.n_shown - n, "");
    state.n_shown = n;
    pthread_mutex_unlock(&state.lock);
}

void say_progress_end(void)
{
    pthread_mutex_lock(&state.lock);
    clear_progress();
    pthread_mutex_unlock(&state.lock);
}

void say_to_log(bool is_json)
{
    state.is_log = true;
    state.is_json = is_json;
}
