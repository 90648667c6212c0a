/* A model's file: whether it is whole, whether it can run, and what its bytes say. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "jobs/check_values.h"
#include "jobs/doctor_internal.h"
#include "jobs/inspect_internal.h"
#include "jobs/verify.h"
#include "store/checksums.h"

static const char download_again[] =
    "compare the file's size and SHA-256 with the publisher's, and download what differs again";

static const char newer_version[] =
    "see docs/quantization.md and moebius version for what can be run; a newer version may know it";

struct looked {
    struct doctor_report *report;
    const struct doctor_model *m;
    struct gguf *gguf;
    bool has_sums;
    uint64_t n_damaged; /* pieces that verify found */
};

enum { MOST_DAMAGED = 16 }; /* that have a line of their own */

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* ERR_OK for what the file's bytes are to blame for: it is a finding. */
static err_code judge(struct looked *l, const char *remedy, err_code code, struct err *e)
{
    if (code != ERR_FORMAT && code != ERR_UNSUPPORTED)
        return code;
    doctor_say(l->report, DOCTOR_FINDING, "model", code == ERR_FORMAT ? remedy : newer_version, "%s", e->text);
    return ERR_OK;
}

/* Whether running the model would refuse it. */
static err_code look_at_layers(struct looked *l, struct err *e)
{
    struct model_facts f = {0};
    struct inspect_layout layout = {0};
    err_code code = gguf_facts_compute(&f, l->gguf, e);
    if (code == ERR_OK)
        code = inspect_layout_open(&layout, l->gguf, &f, e);
    if (code == ERR_OK && !layout.model)
        doctor_say(l->report, DOCTOR_FINDING, "model", newer_version, "it can't be run: %s", layout.error.text);
    else if (code == ERR_OK)
        doctor_say(l->report, DOCTOR_OK, "model", NULL, "%s: %.2f GB in %d file%s, and can be run%s%s", l->m->path,
                   (double)f.n_bytes / 1e9, gguf_n_files(l->gguf), gguf_n_files(l->gguf) == 1 ? "" : "s",
                   *layout.warning ? "; " : "", layout.warning);
    inspect_layout_close(&layout);
    gguf_facts_close(&f);
    return judge(l, download_again, code, e);
}

/* Whether there are checksums, and of this model. */
static err_code look_at_sums(struct looked *l, struct err *e)
{
    struct store *store = NULL;
    struct checksums sums = {0};
    char remedy[PATH_MAX + 128];
    snprintf(remedy, sizeof remedy,
             "once it is known to be good: moebius verify %s --write, and from then on damage is noticed", l->m->path);
    err_code code = store_open_gguf(&store, l->gguf, e);
    if (code == ERR_OK)
        code = checksums_load(&sums, store, &l->has_sums, e);
    checksums_close(&sums);
    store_close(&store);
    if (code == ERR_OK && !l->has_sums)
        doctor_say(l->report, DOCTOR_UNKNOWN, "checksums", remedy, "the file has none");
    else if (code == ERR_OK)
        doctor_say(l->report, DOCTOR_OK, "checksums", NULL, "there are some%s",
                   l->m->deep ? "" : " (--deep or moebius verify compares them)");
    else
        l->has_sums = false;
    return judge(l, remedy, code, e);
}

/* ---- the bytes --------------------------------------------------------------------------------------------------- */

static void note_damaged(void *user, const char *sentence)
{
    struct looked *l = user;
    if (++l->n_damaged <= MOST_DAMAGED)
        doctor_say(l->report, DOCTOR_FINDING, "damage", download_again, "%s", sentence);
}

static bool forward_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct doctor_model *m = ((struct looked *)user)->m;
    return !m->progress || m->progress(m->user, done_bytes, total_bytes);
}

static err_code compare_sums(struct looked *l, struct err *e)
{
    struct verify_result r;
    const struct verify_params p = {.path = l->m->path,
                                    .n_threads = l->m->n_threads,
                                    .damaged = note_damaged,
                                    .progress = forward_progress,
                                    .user = l};
    err_code code = verify_run(&p, &r, e);
    if (code == ERR_OK)
        doctor_say(l->report, DOCTOR_OK, "damage", NULL, "all %.2f GB agree with the checksums",
                   (double)r.n_bytes / 1e9);
    if (l->n_damaged > MOST_DAMAGED)
        doctor_say(l->report, DOCTOR_FINDING, "damage", download_again,
                   "%" PRIu64 " more pieces are damaged; moebius verify names them all", l->n_damaged - MOST_DAMAGED);
    if (code == ERR_FORMAT && r.n_damaged)
        return ERR_OK; /* each is a finding */
    return judge(l, download_again, code, e);
}

static void say_values(struct looked *l, const struct quant_info *q, const struct values_of_type *v)
{
    const char *what = q->block_len > 1 ? "scales" : "values";
    if (v->n_unread)
        doctor_say(l->report, DOCTOR_FINDING, "values",
                   "look at the kernel's messages (dmesg) and at smartctl: the drive may be failing",
                   "%s: %" PRIu64 " matrices can't be read: %s", q->name, v->n_unread, v->why_unread);
    if (v->n_zero)
        doctor_say(l->report, DOCTOR_FINDING, "values", download_again,
                   "%s: %" PRIu64 " matrices are all zeros, as after an unfinished download; the first in \"%s\"",
                   q->name, v->n_zero, v->first->name);
    if (v->check.n_nan || v->check.n_absurd)
        doctor_say(l->report, DOCTOR_FINDING, "values", download_again,
                   "%s: of %" PRIu64 " %s %" PRIu64 " are NaN or infinite and %" PRIu64
                   " larger than any weight's; the first in \"%s\"",
                   q->name, v->check.n_scale, what, v->check.n_nan, v->check.n_absurd, v->first->name);
    if (!v->first)
        doctor_say(l->report, DOCTOR_OK, "values", NULL, "%s: %" PRIu64 " tensors, %.3f GB: all %s are possible",
                   q->name, v->n_tensor, (double)v->n_bytes / 1e9, what);
}

static err_code look_at_values(struct looked *l, struct err *e)
{
    struct values_of_type *v = mem_calloc(QUANT_MAX_ID, sizeof *v);
    if (!v)
        return err_nomem(e, QUANT_MAX_ID * sizeof *v, "what to check");
    const struct check_values_params p = {
        .gguf = l->gguf, .n_threads = l->m->n_threads, .progress = forward_progress, .user = l};
    err_code code = check_values(&p, v, e);
    for (uint32_t i = 0; code == ERR_OK && i < QUANT_MAX_ID; i++)
        if (v[i].n_tensor)
            say_values(l, quant_info(i), &v[i]);
    mem_free(v);
    return judge(l, download_again, code, e);
}

static err_code look(struct looked *l, struct err *e)
{
    TRY(look_at_layers(l, e));
    TRY(look_at_sums(l, e));
    if (!l->m->deep) {
        doctor_say(l->report, DOCTOR_UNKNOWN, "values", NULL, "not looked at without --deep");
        return ERR_OK;
    }
    if (l->has_sums)
        TRY(compare_sums(l, e));
    return look_at_values(l, e);
}

err_code doctor_look_at_model(struct doctor_report *r, const struct doctor_model *m, struct err *e)
{
    struct looked l = {.report = r, .m = m};
    struct stat st;
    if (stat(m->path, &st) == 0 && S_ISDIR(st.st_mode))
        return err_set(e, ERR_USAGE, "%s: a folder, expected a GGUF file; of a prepared store: moebius verify %s",
                       m->path, m->path);
    err_code code = gguf_open(&l.gguf, m->path, e);
    if (code == ERR_OK)
        code = look(&l, e);
    else
        code = judge(&l, download_again, code, e);
    gguf_close(&l.gguf);
    return code;
}
