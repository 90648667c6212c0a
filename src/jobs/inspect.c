#include "jobs/inspect.h"

#include <errno.h>
#include <string.h>

#include "base/near.h"
#include "jobs/inspect_internal.h"

static err_code print_model(FILE *out, const struct gguf *g, const struct inspect_params *p, struct err *e)
{
    struct model_facts f;
    struct inspect_layout l;
    TRY(gguf_facts_compute(&f, g, e));
    err_code code = inspect_layout_open(&l, g, &f, e);
    if (code == ERR_OK && (p->devices || p->must_run) && !l.model)
        code = err_set(e, l.error.code, "%s", l.error.text);
    if (code == ERR_OK && p->devices)
        code = inspect_division_open(&l.division, p, g, l.model, e);
    if (code == ERR_OK && p->json)
        code = inspect_json_model(out, g, &f, &l, e);
    else if (code == ERR_OK)
        inspect_text_model(out, g, &f, &l);
    inspect_layout_close(&l);
    gguf_facts_close(&f);
    return code;
}

/* ": did you mean A, B?" with names that hold the given one or are spelled nearly so, the nearest first; "" when there
 * are none. */
static void suggest(const struct gguf *g, const char *name, char *out, size_t n_out)
{
    enum { N = 4 };
    const char *near[N];
    int n = 0, distance[N];
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const char *other = gguf_tensor_at(g, i)->name;
        int at = n, d = strstr(other, name) ? 0 : near_distance(other, name);
        while (at > 0 && distance[at - 1] > d)
            at--;
        if (d > NEAR_MAX || at == N)
            continue;
        n += n < N;
        for (int k = n - 1; k > at; k--) {
            near[k] = near[k - 1];
            distance[k] = distance[k - 1];
        }
        near[at] = other;
        distance[at] = d;
    }
    size_t used = 0;
    *out = '\0';
    for (int i = 0; i < n && used < n_out; i++)
        used += (size_t)snprintf(out + used, n_out - used, "%s%s%s", i ? ", " : ": did you mean ", near[i],
                                 i == n - 1 ? "?" : "");
}

static err_code print_tensor(FILE *out, const struct gguf *g, bool json, const char *name, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    struct store *s = NULL;
    struct inspect_stats stats = {0};
    err_code code = ERR_OK;
    if (!t) {
        char near[ERR_TEXT_BYTES];
        suggest(g, name, near, sizeof near);
        return err_set(e, ERR_USAGE, "%s: no tensor is named \"%s\"%s", gguf_file_path(g, 0), name,
                       *near ? near : "; --json lists them all");
    }
    if (t->info) {
        TRY_OUT(store_open_gguf(&s, g, e));
        TRY_OUT(inspect_measure_tensor(&stats, s, t, e));
    }
    if (json)
        code = inspect_json_tensor(out, g, t, &stats, e);
    else
        inspect_text_tensor(out, g, t, &stats);
out:
    store_close(&s);
    return code;
}

err_code inspect_print(FILE *out, const char *path, const struct inspect_params *p, struct err *e)
{
    struct gguf *g;
    if (!p->devices && (p->split || p->usage || p->replica_bytes || p->replica_share > 0))
        return err_set(e, ERR_USAGE, "how experts are divided, without devices: expected --devices, too");
    TRY(gguf_open(&g, path, e));
    err_code code = p->tensor_name ? print_tensor(out, g, p->json, p->tensor_name, e) : print_model(out, g, p, e);
    gguf_close(&g);
    if (code == ERR_OK && (fflush(out) != 0 || ferror(out)))
        code = err_set(e, ERR_IO, "writing what was found: %s", strerror(errno));
    return code;
}
