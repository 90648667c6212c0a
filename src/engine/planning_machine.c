/* The machine that a plan is for: this one, or the one that a file tells of. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/free_memory.h"
#include "base/mem.h"
#include "base/output_file.h"
#include "base/pool.h"
#include "engine/cache_file.h"
#include "engine/planning_internal.h"

static void look_at_memory(struct machine *m)
{
    size_t free_bytes = free_memory_bytes("");
    m->ram_bytes = machine_memory_bytes();
    m->free_bytes = free_bytes == SIZE_MAX ? 0 : free_bytes;
}

void planning_machine_vram(struct machine *m)
{
    moebius_gpu all[MACHINE_MAX_GPU];
    int n = moebius_list_gpus(all, MACHINE_MAX_GPU, NULL);
    for (int i = 0; i < n && i < m->n_gpu; i++)
        if (!all[i].shares_memory && !strncmp(m->gpus[i].name, all[i].name, sizeof m->gpus[i].name - 1))
            m->gpus[i].free_bytes = all[i].budget_bytes;
}

void planning_machine_look(struct machine *m)
{
    *m = (struct machine){.n_thread = pool_default_threads()};
    cpu_name(m->name, sizeof m->name);
    look_at_memory(m);
}

/* The file of what this machine can do, in the cache directory; NULL: there is no such place. */
static err_code kept_path(char **path, struct err *e)
{
    return cache_file_path("machine.json", path, e);
}

static err_code parse_file(struct machine *m, const char *path, bool *is_there, struct err *e)
{
    char *text;
    size_t n;
    TRY(cache_file_read(path, &text, &n, e));
    *is_there = text != NULL;
    err_code code = text ? machine_parse(m, text, n, path, e) : ERR_OK;
    mem_free(text);
    return code;
}

err_code planning_machine_read(struct machine *m, const char *path, struct err *e)
{
    bool is_there = false;
    char *kept = NULL, name[MACHINE_NAME_BYTES];
    if (path) {
        TRY(parse_file(m, path, &is_there, e));
        return is_there ? ERR_OK : err_set(e, ERR_IO, "%s: there is no such file of a machine's facts", path);
    }
    TRY(kept_path(&kept, e));
    err_code code = kept ? parse_file(m, kept, &is_there, e) : ERR_OK;
    mem_free(kept);
    cpu_name(name, sizeof name);
    if (code == ERR_OK && (!is_there || strcmp(m->name, name) != 0)) /* another machine shares the folder */
        planning_machine_look(m);
    look_at_memory(m); /* other processes' memory as it is now */
    return code;
}

err_code planning_machine_save(const struct machine *m, const char *path, struct err *e)
{
    struct output_file f = {0};
    char *text = NULL, *kept = NULL;
    err_code code = ERR_OK;
    if (!path)
        TRY(kept_path(&kept, e));
    if (!path && !kept)
        return err_set(e, ERR_IO, "no cache directory: expected the environment variable HOME or XDG_CACHE_HOME");
    if (kept)
        TRY_OUT(cache_file_make_folders(kept, e));
    TRY_OUT(machine_write(m, &text, e));
    TRY_OUT(output_file_open(&f, path ? path : kept, e));
    fprintf(f.stream, "%s\n", text);
    code = output_file_finish(&f, e);
out:
    mem_free(text);
    mem_free(kept);
    return code;
}
