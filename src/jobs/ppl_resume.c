#include "jobs/ppl_resume.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/output_file.h"
#include "base/text_scanner.h"
#include "store/store.h"

enum { N_SUM = 6, MOST_WINDOWS = 1 << 30, MOST_BYTES = 4096 };

err_code ppl_identify(struct ppl_identity *id, const char *model_path, const int32_t *ids, size_t n, struct err *e)
{
    struct gguf *gguf = NULL;
    struct store *store = NULL;
    err_code code;
    id->text = gguf_mix(n, ids, n * sizeof *ids);
    TRY_OUT(gguf_open(&gguf, model_path, e));
    TRY_OUT(store_open_gguf(&store, gguf, e));
    TRY_OUT(store_fingerprint(store, &id->model, e));
out:
    store_close(&store);
    gguf_close(&gguf);
    return code;
}

/* The sums in the order of the file. */
static void list_sums(struct ppl_sums *s, double *list[N_SUM])
{
    double *all[N_SUM] = {&s->nll,        &s->nll_squared,       &s->difference, &s->difference_squared,
                          &s->divergence, &s->divergence_squared};
    memcpy(list, all, sizeof all);
}

/* A line that must be that of this run. */
static err_code check_hash(struct text_scanner *w, const char *what, uint64_t want, struct err *e)
{
    uint64_t found;
    TRY(text_scanner_literal(w, what, e));
    TRY(text_scanner_hex(w, "a hash of 16 digits", &found, e));
    if (found != want)
        return err_set(e, ERR_FORMAT, "%s: of another %s (%016" PRIx64 "), expected %016" PRIx64, w->name, what, found,
                       want);
    return ERR_OK;
}

err_code ppl_resume_parse(const struct ppl_identity *id, const char *text, size_t n, const char *name,
                          struct ppl_sums *out, struct err *e)
{
    struct text_scanner w = {.p = text, .end = text + n, .name = name};
    struct ppl_sums s = {0};
    uint64_t n_window, n_scored, n_same, bits;
    double *sums[N_SUM];
    TRY(text_scanner_literal(&w, "moebius ppl 1", e));
    TRY(check_hash(&w, "model", id->model, e));
    TRY(check_hash(&w, "text", id->text, e));
    TRY(text_scanner_literal(&w, "settings", e));
    if (text_scanner_literal(&w, id->settings, e) != ERR_OK)
        return err_prefix(e, "other settings");
    TRY(text_scanner_literal(&w, "windows", e));
    TRY(text_scanner_number(&w, "windows", 1, MOST_WINDOWS, &n_window, e));
    TRY(text_scanner_literal(&w, "scored", e));
    TRY(text_scanner_number(&w, "scored tokens", 1, INT64_MAX, &n_scored, e));
    TRY(text_scanner_literal(&w, "same", e));
    TRY(text_scanner_number(&w, "tokens", 0, n_scored, &n_same, e));
    TRY(text_scanner_literal(&w, "sums", e));
    s.n_window = (int64_t)n_window;
    s.n_scored = (int64_t)n_scored;
    s.n_same = (int64_t)n_same;
    list_sums(&s, sums);
    for (int i = 0; i < N_SUM; i++) {
        TRY(text_scanner_hex(&w, "the 16 digits of a sum", &bits, e));
        memcpy(sums[i], &bits, sizeof bits);
        if (!isfinite(*sums[i]))
            return err_set(e, ERR_FORMAT, "%s: sum %d is not a finite number", name, i + 1);
    }
    *out = s;
    return text_scanner_end(&w, e);
}

err_code ppl_resume_load(const struct ppl_identity *id, const char *path, struct ppl_sums *out, struct err *e)
{
    char text[MOST_BYTES];
    *out = (struct ppl_sums){0};
    FILE *f = fopen(path, "rb");
    if (!f)
        return errno == ENOENT ? ERR_OK : err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    size_t n = fread(text, 1, sizeof text, f);
    err_code code = ferror(f) ? err_set(e, ERR_IO, "%s: %s", path, strerror(errno)) : ERR_OK;
    fclose(f);
    return code == ERR_OK ? ppl_resume_parse(id, text, n, path, out, e) : code;
}

err_code ppl_resume_save(const struct ppl_identity *id, const char *path, const struct ppl_sums *s, struct err *e)
{
    struct output_file f;
    struct ppl_sums copy = *s;
    double *sums[N_SUM];
    TRY(output_file_open(&f, path, e));
    list_sums(&copy, sums);
    fprintf(f.stream,
            "moebius ppl 1\nmodel %016" PRIx64 "\ntext %016" PRIx64 "\nsettings %s\nwindows %" PRId64 " scored %" PRId64
            " same %" PRId64 "\nsums",
            id->model, id->text, id->settings, s->n_window, s->n_scored, s->n_same);
    for (int i = 0; i < N_SUM; i++) {
        uint64_t bits;
        memcpy(&bits, sums[i], sizeof bits);
        fprintf(f.stream, " %016" PRIx64, bits);
    }
    fprintf(f.stream, "\n");
    return output_file_finish(&f, e);
}
