#include "cli/serve_reports.h"

#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "engine/receipts_file.h"

static err_code read_object(const char *text, json_t **out, struct err *e)
{
    json_error_t error;
    *out = json_read(text, strlen(text), 0, &error);
    return *out ? ERR_OK : err_nomem(e, strlen(text), "a report");
}

/* ---- plans ----------------------------------------------------------------------------------------------------- */

err_code serve_report_plan(void *user, const char *path, json_t **out, struct err *e)
{
    const struct report_settings *s = user;
    const struct model_options *o = s->model;
    const bool is_gpu = o->devices && !strncmp(o->devices, "vulkan:0", 8);
    const int n_gpu = o->devices ? cli_count_gpus(o->devices) : 0;
    moebius_session_options session;
    moebius_error error;
    moebius_plan *p;
    if (o->split && !strncmp(o->split, "stages", strlen("stages")) && n_gpu < 2)
        return err_set(e, ERR_UNSUPPORTED, "--split %s: plans know layers on several GPUs alone", o->split);
    TRY(cli_session_options(o, &session, e));
    const moebius_plan_options options = {.n_threads = (int)o->n_threads,
                                          .n_ctx = o->n_ctx,
                                          .n_texts = s->n_texts,
                                          .n_batch = o->n_batch,
                                          .kv = (int)session.kv,
                                          .ram_bytes = o->ram_bytes,
                                          .vram_bytes = is_gpu ? o->vram_bytes : 0,
                                          .gpu = is_gpu,
                                          .n_gpu = n_gpu,
                                          .split = n_gpu > 1 ? "stages" : NULL,
                                          .usage = o->cold    ? NULL
                                                   : o->usage ? o->usage
                                                              : "",
                                          .receipts = ""};
    if (moebius_plan_open(&p, path, &options, &error) != MOEBIUS_OK)
        return err_adopt(e, &error);
    err_code code = read_object(moebius_plan_json(p), out, e);
    moebius_plan_close(&p);
    return code;
}

/* ---- receipts -------------------------------------------------------------------------------------------------- */

static err_code add_receipt(json_t *list, const struct receipt *r, struct err *e)
{
    char *line;
    json_t *object = NULL;
    TRY(receipt_write(r, &line, e));
    err_code code = read_object(line, &object, e);
    mem_free(line);
    TRY(code);
    return json_array_append_new(list, object) == 0 ? ERR_OK : err_nomem(e, sizeof *r, "a receipt");
}

/* Lines that can't be read are skipped; `moebius receipts` reports them. */
err_code serve_report_receipts(void *user, json_t **out, struct err *e)
{
    struct receipt *list = NULL;
    size_t n = 0;
    char *path;
    TRY(receipts_path(&path, e));
    err_code code = path ? receipts_load(path, &list, &n, NULL, e) : ERR_OK;
    mem_free(path);
    json_t *all = code == ERR_OK ? json_array() : NULL;
    if (code == ERR_OK && !all)
        code = err_nomem(e, n * sizeof *list, "receipts");
    for (size_t i = 0; code == ERR_OK && i < n; i++)
        code = add_receipt(all, &list[i], e);
    mem_free(list);
    if (code != ERR_OK)
        json_decref(all);
    *out = code == ERR_OK ? all : NULL;
    return code;
}
