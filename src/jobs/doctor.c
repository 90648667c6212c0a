#define _GNU_SOURCE
#include "jobs/doctor.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/json_text.h"
#include "base/mem.h"
#include "base/printable.h"
#include "jobs/doctor_internal.h"

/* ---- what the doctor's files share ------------------------------------------------------------------------------ */

void doctor_say(struct doctor_report *r, enum doctor_state state, const char *topic, const char *remedy,
                const char *fmt, ...)
{
    if (r->n_line == DOCTOR_MAX_LINE)
        return;
    struct doctor_line *l = &r->lines[r->n_line++];
    va_list args;
    va_start(args, fmt);
    (void)printable_format(l->said, sizeof l->said, fmt, args);
    va_end(args);
    (void)printable_line(remedy ? remedy : "", remedy ? strlen(remedy) : 0, l->remedy, sizeof l->remedy);
    l->state = state;
    l->topic = topic;
}

static bool read_path(const struct doctor *d, char *out, size_t n_out, const char *path, va_list args)
    PRINTF_LIKE(4, 0);
static bool read_path(const struct doctor *d, char *out, size_t n_out, const char *path, va_list args)
{
    char full[PATH_MAX];
    size_t n_root = (size_t)snprintf(full, sizeof full, "%s", d->root), n = 0;
    ssize_t got = 0;
    if (n_root >= sizeof full ||
        (size_t)vsnprintf(full + n_root, sizeof full - n_root, path, args) >= PATH_MAX - n_root)
        return false;
    int fd = file_open(full, O_RDONLY, 0);
    while (fd >= 0 && n + 1 < n_out && (got = read(fd, out + n, n_out - n - 1)) > 0)
        n += (size_t)got;
    if (fd >= 0)
        close(fd);
    if (fd < 0 || got < 0)
        return false;
    while (n > 0 && out[n - 1] == '\n')
        n--;
    out[n] = '\0';
    return true;
}

bool doctor_read(const struct doctor *d, char *out, size_t n_out, const char *path, ...)
{
    va_list args;
    va_start(args, path);
    bool found = read_path(d, out, n_out, path, args);
    va_end(args);
    return found;
}

bool doctor_number(const struct doctor *d, double *out, const char *path, ...)
{
    char text[64], *end;
    va_list args;
    va_start(args, path);
    bool found = read_path(d, text, sizeof text, path, args);
    va_end(args);
    if (!found)
        return false;
    *out = strtod(text, &end);
    return end != text;
}

bool doctor_find_number(const char *text, const char *key, double *out)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char *end;
        if (strncmp(line, key, n) != 0)
            continue;
        *out = strtod(line + n, &end);
        return end != line + n;
    }
    return false;
}

bool doctor_each_name(struct doctor *d, const char *folder, doctor_name_fn *fn)
{
    char full[PATH_MAX];
    struct dirent **names;
    if ((size_t)snprintf(full, sizeof full, "%s%s", d->root, folder) >= sizeof full)
        return false;
    int n = scandir(full, &names, NULL, versionsort);
    if (n < 0)
        return false;
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.')
            fn(d, names[i]->d_name);
        free(names[i]); /* the C library's */
    }
    free(names);
    return true;
}

void doctor_look(struct doctor_report *r, const char *root, const struct doctor_live *live)
{
    struct doctor d = {r, root, live};
    doctor_processor(&d);
    doctor_memory(&d);
    doctor_drive(&d);
    doctor_links(&d);
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

int doctor_n_findings(const struct doctor_report *r)
{
    int n = 0;
    for (int i = 0; i < r->n_line; i++)
        n += r->lines[i].state == DOCTOR_FINDING;
    return n;
}

static const char *const state_names[] = {
    [DOCTOR_OK] = "ok", [DOCTOR_FINDING] = "finding", [DOCTOR_UNKNOWN] = "unknown"};

/* Words broken at spaces, `left` columns from the left; the cursor is there already. */
static void print_wrapped(FILE *out, const char *text, int left)
{
    enum { WIDTH = 100 };
    for (;;) {
        size_t room = (size_t)(WIDTH - left), n = strlen(text);
        if (n > room)
            for (n = room; n > 0 && text[n] != ' ';)
                n--;
        if (n == 0) /* a word that has no room in a line, such as a path, stays whole */
            n = strcspn(text, " ");
        fprintf(out, "%.*s\n", (int)n, text);
        text += n + (text[n] == ' ');
        if (!*text)
            return;
        fprintf(out, "%*s", left, "");
    }
}

void doctor_print(const struct doctor_report *r, FILE *out)
{
    static const char marks[] = {[DOCTOR_OK] = ' ', [DOCTOR_FINDING] = '!', [DOCTOR_UNKNOWN] = '?'};
    int n_finding = doctor_n_findings(r), n_unknown = 0;
    for (int i = 0; i < r->n_line; i++) {
        const struct doctor_line *l = &r->lines[i];
        n_unknown += l->state == DOCTOR_UNKNOWN;
        fprintf(out, "%c %-15s ", marks[l->state], l->topic);
        print_wrapped(out, l->said, 18);
        if (*l->remedy) {
            fprintf(out, "%18s-> ", "");
            print_wrapped(out, l->remedy, 21);
        }
    }
    fprintf(out, "\n%d finding%s (!), %d unknown (?)\n", n_finding, n_finding == 1 ? "" : "s", n_unknown);
}

err_code doctor_print_json(const struct doctor_report *r, FILE *out, struct err *e)
{
    json_t *list = json_array();
    for (int i = 0; i < r->n_line; i++) {
        const struct doctor_line *l = &r->lines[i];
        json_t *one = json_pack("{s:s, s:s, s:s}", "topic", l->topic, "state", state_names[l->state], "said", l->said);
        if (one && *l->remedy)
            json_object_set_new(one, "remedy", json_string(l->remedy));
        json_array_append_new(list, one);
    }
    json_t *all = json_pack("{s:i, s:o}", "n_findings", doctor_n_findings(r), "lines", list);
    char *text = all ? json_write(all, JSON_INDENT(2), NULL) : NULL;
    json_decref(all);
    if (!text)
        return err_nomem(e, sizeof *r, "the report");
    fprintf(out, "%s\n", text);
    mem_free(text);
    return ERR_OK;
}
