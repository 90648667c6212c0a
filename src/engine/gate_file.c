#include "engine/gate_file.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/output_file.h"
#include "engine/cache_file.h"

static err_code find_path(uint64_t fingerprint, char **path, struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "gate-%016" PRIx64 ".json", fingerprint);
    return cache_file_path(name, path, e);
}

err_code gate_file_read(struct gate_curve *c, uint64_t fingerprint, bool *is_there, struct err *e)
{
    char *path, *text = NULL;
    size_t n = 0;
    *is_there = false;
    TRY(find_path(fingerprint, &path, e));
    err_code code = path ? cache_file_read(path, &text, &n, e) : ERR_OK;
    if (code == ERR_OK && text)
        code = gate_parse(c, text, n, path, e);
    if (code == ERR_OK && text && c->fingerprint != fingerprint)
        code = err_set(e, ERR_FORMAT, "%s: \"model\": expected %016" PRIx64, path, fingerprint);
    *is_there = code == ERR_OK && text;
    mem_free(text);
    mem_free(path);
    return code;
}

err_code gate_file_save(const struct gate_curve *c, char **path, struct err *e)
{
    struct output_file f = {0};
    char *text = NULL;
    err_code code;
    TRY(find_path(c->fingerprint, path, e));
    if (!*path)
        return ERR_OK;
    TRY_OUT(cache_file_make_folders(*path, e));
    TRY_OUT(gate_write(c, &text, e));
    TRY_OUT(output_file_open(&f, *path, e));
    fprintf(f.stream, "%s\n", text);
    code = output_file_finish_unsynced(&f, e);
out:
    mem_free(text);
    if (code != ERR_OK) {
        mem_free(*path);
        *path = NULL;
    }
    return code;
}
