#define _POSIX_C_SOURCE 200809L
#include "cli/line_editor.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/interrupt.h"
#include "cli/say.h"
#include "cli/terminal.h"

#if defined(HAVE_LIBEDIT)
#include <histedit.h>
#endif

struct line_editor {
    bool interactive;
    const char *prompt;
    char *line; /* getline's, which comes from malloc */
    size_t capacity;
#if defined(HAVE_LIBEDIT)
    EditLine *edit;
    History *history;
#endif
};

#if defined(HAVE_LIBEDIT)
enum { HISTORY_LINES = 1000 };

static char *prompt_of(EditLine *edit)
{
    struct line_editor *editor = NULL;
    el_get(edit, EL_CLIENTDATA, &editor);
    return (char *)editor->prompt;
}

/* What terminals write around a paste when they were asked to (bracketed paste). */
#define PASTE_BEGIN "\033[200~"
#define PASTE_END   "\033[201~"

/* Reads up to the end of a paste, in which terminals send CR for newlines. The last newline is dropped, so that the
 * user presses Enter. */
static unsigned char take_paste(EditLine *edit, int key)
{
    enum { N_END = sizeof PASTE_END - 1 };
    char *text = NULL, c;
    size_t n = 0, capacity = 0;
    while (el_getc(edit, &c) == 1) {
        if (mem_grow(&text, &capacity, n + 2, 1, "a paste", NULL) != ERR_OK)
            break;
        text[n++] = c == '\r' ? '\n' : c;
        if (n >= N_END && !memcmp(text + n - N_END, PASTE_END, N_END)) {
            n -= N_END;
            break;
        }
    }
    n -= n > 0 && text[n - 1] == '\n';
    if (text)
        text[n] = '\0';
    int failed = n > 0 ? el_insertstr(edit, text) : 0;
    mem_free(text);
    return failed ? CC_ERROR : CC_REFRESH;
}

/* Texts are UTF-8, whatever the locale; numbers keep their form. */
static void read_utf8(void)
{
    if (setlocale(LC_CTYPE, "") && !strcmp(nl_langinfo(CODESET), "UTF-8"))
        return;
    if (!setlocale(LC_CTYPE, "C.UTF-8"))
        say(LOG_WARN, "neither the locale nor C.UTF-8 knows UTF-8 here: only ASCII can be typed");
}

static void open_libedit(struct line_editor *l)
{
    HistEvent event;
    if (!l->interactive)
        return;
    read_utf8();
    l->edit = el_init("moebius", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history)
        return;
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt_of);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_SIGNAL,
           1); /* follows the window's size, and restores the terminal when the process is stopped */
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(l->edit, EL_ADDFN, L"moebius-paste", L"takes what is pasted as one line", take_paste); /* el_set leaks */
    el_set(l->edit, EL_BIND, PASTE_BEGIN, "moebius-paste", NULL);
    el_source(l->edit, NULL); /* ~/.editrc */
}

static void close_libedit(struct line_editor *l)
{
    if (l->history)
        history_end(l->history);
    if (l->edit)
        el_end(l->edit);
}

static enum line_event read_libedit(struct line_editor *l, const char **line)
{
    int n = 0;
    bool bracketed = terminal_knows_escapes(stdout);
    errno = 0;
    if (bracketed)
        fputs("\033[?2004h", stdout);
    const char *text = el_gets(l->edit, &n);
    int error = errno;
    if (bracketed)
        fputs("\033[?2004l", stdout);
    fflush(stdout);
    if (!text || n <= 0)
        return n < 0 && error == EINTR ? LINE_INTERRUPTED : LINE_END;
    size_t length = (size_t)n - (text[n - 1] == '\n');
    char *copy = mem_resize(l->line, length + 1, 1);
    if (!copy)
        return LINE_END;
    memcpy(copy, text, length);
    copy[length] = '\0';
    l->line = copy;
    l->capacity = length + 1;
    *line = copy;
    return LINE_TEXT;
}
#endif

err_code line_editor_open(struct line_editor **out, bool interactive, struct err *e)
{
    struct line_editor *l = *out = mem_calloc(1, sizeof *l);
    if (!l)
        return err_nomem(e, sizeof *l, "the line editor");
    l->interactive = interactive;
#if defined(HAVE_LIBEDIT)
    open_libedit(l);
#endif
    return ERR_OK;
}

void line_editor_close(struct line_editor **editor)
{
    if (!*editor)
        return;
#if defined(HAVE_LIBEDIT)
    close_libedit(*editor);
#endif
    mem_free((*editor)->line);
    mem_free(*editor);
    *editor = NULL;
}

/* Whether Ctrl-C, once handled, ends the waiting for input; elsewhere reads go on. */
static void interrupt_reads(bool on)
{
    struct sigaction action;
    if (sigaction(SIGINT, NULL, &action) != 0)
        return;
    action.sa_flags = on ? action.sa_flags & ~SA_RESTART : action.sa_flags | SA_RESTART;
    sigaction(SIGINT, &action, NULL);
}

static enum line_event read_line(struct line_editor *l, const char **line)
{
#if defined(HAVE_LIBEDIT)
    if (l->edit && l->history)
        return read_libedit(l, line);
#endif
    if (l->interactive) {
        fputs(l->prompt, stdout);
        fflush(stdout);
    }
    errno = 0;
    if (l->interactive)
        interrupt_reads(true);
    ssize_t n = getline(&l->line, &l->capacity, stdin);
    if (l->interactive)
        interrupt_reads(false);
    if (n < 0) {
        bool interrupted = errno == EINTR, failed = !feof(stdin);
        clearerr(stdin);
        return interrupted ? LINE_INTERRUPTED : failed ? LINE_FAILED : LINE_END;
    }
    if (n > 0 && l->line[n - 1] == '\n')
        l->line[n - 1] = '\0';
    *line = l->line;
    return LINE_TEXT;
}

enum line_event line_editor_read(struct line_editor *l, const char *prompt, const char **line)
{
    l->prompt = prompt;
    if (!l->interactive)
        return read_line(l, line);
    cli_end_reads(true);
    enum line_event event = cli_interrupted() ? LINE_INTERRUPTED : read_line(l, line);
    cli_end_reads(false);
    return event;
}

void line_editor_remember(struct line_editor *l, const char *text)
{
#if defined(HAVE_LIBEDIT)
    HistEvent event;
    if (l->history)
        history(l->history, &event, H_ENTER, text);
#endif
}

bool line_editor_prefill(struct line_editor *l, const char *text)
{
#if defined(HAVE_LIBEDIT)
    if (l->edit && l->history) {
        el_push(l->edit, text);
        return true;
    }
#endif
    return false;
}

const char *line_editor_name(void)
{
#if defined(HAVE_LIBEDIT)
    return "libedit";
#else
    return "none";
#endif
}
