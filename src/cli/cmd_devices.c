#include <jansson.h>
#include <stdio.h>

#include "base/cpu.h"
#include "base/units_text.h"
#include "cli/commands.h"

enum { MAX_GPU = 64 };

static void print_text(const moebius_gpu *gpus, int n, const moebius_error *none)
{
    printf("cpu       %d processors\n", cpu_n_available());
    for (int i = 0; i < n; i++) {
        const moebius_gpu *g = &gpus[i];
        printf("vulkan:%-2d %s (%s, Vulkan %d.%d.%d, %s)\n", i, g->name, g->kind, g->api_version[0], g->api_version[1],
               g->api_version[2], g->driver);
        if (g->is_usable)
            printf("          usable: %s of %s, of which its driver gives %s%s%s\n",
                   units_size((uint64_t)g->memory_bytes).s,
                   g->shares_memory ? "the machine's memory" : "its own memory",
                   units_size((uint64_t)g->budget_bytes).s,
                   g->has_upload_queue ? "; uploads have a queue of their own" : "",
                   g->is_auto ? "; --gpu auto takes it, if it is fast enough" : "");
        else
            printf("          not usable: %s\n", g->why_not);
    }
    if (n == 0)
        printf("no GPU: %s\n", none->text);
}

static void print_json(const moebius_gpu *gpus, int n, const moebius_error *none)
{
    json_t *list = json_array(), *all;
    for (int i = 0; i < n; i++) {
        const moebius_gpu *g = &gpus[i];
        char device[32];
        snprintf(device, sizeof device, "vulkan:%d", i);
        json_t *one = json_pack("{s:s, s:s, s:s, s:s, s:[i,i,i], s:I, s:I, s:b, s:b, s:b, s:b}", "device", device,
                                "name", g->name, "driver", g->driver, "kind", g->kind, "vulkan", g->api_version[0],
                                g->api_version[1], g->api_version[2], "memory_bytes", (json_int_t)g->memory_bytes,
                                "budget_bytes", (json_int_t)g->budget_bytes, "shares_memory", g->shares_memory,
                                "upload_queue", g->has_upload_queue, "usable", g->is_usable, "auto", g->is_auto);
        if (!g->is_usable)
            json_object_set_new(one, "why_not", json_string(g->why_not));
        json_array_append_new(list, one);
    }
    all = json_pack("{s:{s:i}, s:o}", "cpu", "processors", cpu_n_available(), "gpus", list);
    if (n == 0)
        json_object_set_new(all, "no_gpu", json_string(none->text));
    json_dumpf(all, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(all);
}

static int run(const struct command *c, int argc, char **argv)
{
    struct err e = {0};
    bool json = false;
    const struct option options[] = {{"--json", OPT_FLAG, &json, "", "print one JSON object", 0, 0, 0}};
    err_code code = options_parse(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK) {
        static moebius_gpu gpus[MAX_GPU];
        moebius_error none = {0};
        int n = moebius_list_gpus(gpus, MAX_GPU, &none);
        (json ? print_json : print_text)(gpus, n < MAX_GPU ? n : MAX_GPU, &none);
    }
    return cli_exit(c, code, &e);
}

const struct command cmd_devices = {
    .name = "devices",
    .usage = "[--json]",
    .summary = "list the processors and GPUs, and which of them can be used",
    .details =
        "GPUs are found through Vulkan. --devices names a GPU vulkan:N, and --gpu names it N. If a GPU cannot be "
        "used, its line says why.",
    .group = COMMAND_LOOK,
    .run = run,
};
