#include "hub/model_sets.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/split_set.h"

static const char suffix[] = ".gguf";

static bool is_model(const char *path)
{
    static const char *const others[] = {"mmproj", "imatrix"};
    size_t n = strlen(path);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (n < sizeof suffix || strcasecmp(path + n - (sizeof suffix - 1), suffix) != 0)
        return false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (const char *p = name; *p; p++)
            if (strncasecmp(p, others[i], strlen(others[i])) == 0)
                return false;
    return true;
}

err_code model_sets_add(struct model_sets *s, const struct hub_file *f, struct err *e)
{
    enum { MOST_FILES = 20000 };
    if (!is_model(f->path))
        return ERR_OK;
    if (s->n_files == MOST_FILES)
        return err_set(e, ERR_LIMIT, "more than %d models in one place", MOST_FILES);
    if ((s->n_files & (s->n_files - 1)) == 0) { /* full: the arena keeps the old list until the end */
        struct hub_file *more = arena_calloc(&s->arena, s->n_files ? 2 * s->n_files : 1, sizeof *more);
        if (!more)
            return err_nomem(e, 2 * s->n_files * sizeof *more, "a list of files");
        if (s->n_files)
            memcpy(more, s->files, s->n_files * sizeof *more);
        s->files = more;
    }
    struct hub_file *kept = &s->files[s->n_files];
    *kept = *f;
    kept->path = arena_strndup(&s->arena, f->path, strlen(f->path));
    kept->digest = f->digest ? arena_strndup(&s->arena, f->digest, strlen(f->digest)) : NULL;
    if (!kept->path || (f->digest && !kept->digest))
        return err_nomem(e, strlen(f->path), "a list of files");
    s->n_files++;
    return ERR_OK;
}

/* ---- quantisations in names ------------------------------------------------------------------------------------ */

static bool is_border(char c)
{
    return !c || strchr("-./", c) != NULL;
}

/* The bytes of a quantisation that begins here, as in names of files: Q4_K_M, IQ2_XXS, TQ1_0, BF16, MXFP4_MOE. */
static size_t label_length(const char *s)
{
    static const char *const whole[] = {"BF16", "F16", "F32", "FP16", "FP32", "MXFP4", "NVFP4"};
    size_t n = strcspn(s, "-./");
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        size_t k = strlen(whole[i]);
        if (strncasecmp(s, whole[i], k) == 0 && (is_border(s[k]) || s[k] == '_'))
            return n;
    }
    size_t head = (s[0] == 'I' || s[0] == 'i' || s[0] == 'T' || s[0] == 't') ? 1 : 0;
    bool is_quant = (s[head] == 'Q' || s[head] == 'q') && isdigit((unsigned char)s[head + 1]) &&
                    (s[head + 2] == '_' || is_border(s[head + 2]));
    return is_quant ? n : 0;
}

/* The last one in the path, with a word "UD" before it. */
static void find_label(const char *path, char *out, size_t n_out)
{
    *out = '\0';
    for (const char *p = path; *p; p++) {
        size_t n = p == path || is_border(p[-1]) ? label_length(p) : 0;
        bool is_ud = n > 0 && p - path >= 3 && strncasecmp(p - 3, "UD-", 3) == 0;
        is_ud = is_ud && (p - path == 3 || is_border(p[-4]));
        if (n > 0 && n + 3 < n_out)
            snprintf(out, n_out, "%s%.*s", is_ud ? "UD-" : "", (int)n, p);
    }
}

/* ---- sets ------------------------------------------------------------------------------------------------------ */

/* By name, then the number of parts, then which part: a set's files become neighbours. */
static int compare(const void *a, const void *b)
{
    const char *p = ((const struct hub_file *)a)->path, *q = ((const struct hub_file *)b)->path;
    size_t n = strlen(p), m = strlen(q);
    struct split_set s, t;
    bool p_is_part = split_set_parse(&s, p, n), q_is_part = split_set_parse(&t, q, m);
    n = p_is_part ? s.n_name : n;
    m = q_is_part ? t.n_name : m;
    int by_name = memcmp(p, q, n < m ? n : m);
    if (by_name != 0 || n != m || !p_is_part || !q_is_part)
        return by_name != 0 ? by_name : n != m ? (n < m ? -1 : 1) : strcmp(p, q);
    return s.n_part != t.n_part ? s.n_part - t.n_part : strcmp(p, q);
}

/* Whether the file is of the set that the first one began. */
static bool is_same_set(const struct hub_file *first, const struct hub_file *f)
{
    struct split_set s, t;
    return split_set_parse(&s, first->path, strlen(first->path)) && split_set_parse(&t, f->path, strlen(f->path)) &&
           s.n_part == t.n_part && s.n_name == t.n_name && memcmp(first->path, f->path, s.n_name) == 0;
}

static void add_set(struct model_sets *s, const struct hub_file *f)
{
    struct split_set split;
    struct model_set *last = s->n ? &s->sets[s->n - 1] : NULL;
    if (!last || !is_same_set(last->files, f)) {
        last = &s->sets[s->n++];
        bool is_part = split_set_parse(&split, f->path, strlen(f->path));
        *last = (struct model_set){.files = f, .n_parts = is_part ? split.n_part : 1};
        find_label(f->path, last->label, sizeof last->label);
    }
    last->n++;
    last->n_bytes += f->n_bytes;
}

err_code model_sets_group(struct model_sets *s, struct err *e)
{
    if (s->n_files)
        qsort(s->files, s->n_files, sizeof *s->files, compare);
    s->sets = arena_calloc(&s->arena, s->n_files + 1, sizeof *s->sets);
    if (!s->sets)
        return err_nomem(e, s->n_files * sizeof *s->sets, "a list of models");
    for (size_t i = 0; i < s->n_files; i++)
        if (i == 0 || strcmp(s->files[i].path, s->files[i - 1].path) != 0) /* a hostile list may name one twice */
            add_set(s, &s->files[i]);
    return ERR_OK;
}

void model_sets_close(struct model_sets *s)
{
    arena_close(&s->arena);
    *s = (struct model_sets){0};
}

/* ---- choosing -------------------------------------------------------------------------------------------------- */

static bool is_path(const struct model_set *set, const char *what)
{
    for (int i = 0; i < set->n; i++) {
        const char *path = set->files[i].path;
        size_t n = strlen(what), n_path = strlen(path);
        if (strcmp(path, what) == 0 || (n + sizeof suffix - 1 == n_path && strncmp(path, what, n) == 0))
            return true;
    }
    return false;
}

/* Whether the words of `what` are words of the path. */
static bool has_word(const char *path, const char *what)
{
    size_t n = strlen(what);
    for (const char *p = path; *p; p++)
        if ((p == path || is_border(p[-1])) && strncasecmp(p, what, n) == 0 && is_border(p[n]))
            return true;
    return false;
}

int model_set_fitness(const struct model_set *set, const char *what)
{
    if (*what && is_path(set, what))
        return 3;
    if (*what && strcasecmp(set->label, what) == 0)
        return 2;
    return !*what || has_word(set->files[0].path, what);
}

/* "Q4_K_M (17.3 GB), ...", those of this fitness or better. */
static void list_sets(const struct model_sets *s, const char *what, int least, char *out, size_t n_out)
{
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < s->n; i++) {
        const struct model_set *set = &s->sets[i];
        if (model_set_fitness(set, what) < least)
            continue;
        bool is_alone = *set->label != '\0'; /* among labels */
        for (size_t k = 0; k < s->n; k++)
            is_alone &= k == i || strcasecmp(s->sets[k].label, set->label) != 0;
        int more = snprintf(out + n, n_out - n, "%s%s (%.1f GB)", n ? ", " : "",
                            is_alone ? set->label : set->files[0].path, (double)set->n_bytes / 1e9);
        if (more < 0 || n + (size_t)more >= n_out) {
            snprintf(out + n, n_out - n, "%s", n_out - n > 6 ? ", ..." : "");
            return;
        }
        n += (size_t)more;
    }
}

err_code model_sets_choose(const struct model_sets *s, const char *what, const char *name, const struct model_set **out,
                           struct err *e)
{
    char list[512];
    int best = 0, n_best = 0;
    for (size_t i = 0; i < s->n; i++) {
        int fit = model_set_fitness(&s->sets[i], what);
        n_best = fit > best ? 1 : n_best + (fit == best && fit > 0);
        if (fit > best || (fit == best && fit > 0 && n_best == 1))
            *out = &s->sets[i];
        best = fit > best ? fit : best;
    }
    if (s->n == 0)
        return err_set(e, ERR_FAIL, "%s: there is no GGUF file in it", name);
    if (n_best == 0) {
        list_sets(s, what, 0, list, sizeof list);
        return err_set(e, ERR_USAGE, "%s: no file has that name; there is %s", name, list);
    }
    if (n_best > 1) {
        list_sets(s, what, best, list, sizeof list);
        return err_set(e, ERR_USAGE, "%s: several models; add one of these after a colon: %s", name, list);
    }
    if ((*out)->n != (*out)->n_parts)
        return err_set(e, ERR_FAIL, "%s: %d of the %d parts of %s are missing", name, (*out)->n_parts - (*out)->n,
                       (*out)->n_parts, (*out)->files[0].path);
    return ERR_OK;
}
