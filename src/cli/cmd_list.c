/* list: the models that are here, and those that are known to run. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/mem.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/confine.h"
#include "hub/hub.h"

/* ---- known models ----------------------------------------------------------------------------------------------- */

struct known {
    const char *architecture, *models, *status;
};

static const struct known known[] = {
#define KNOWN(architecture, models, status) {architecture, models, status},
#include "cli/known_models.def"
#undef KNOWN
};

enum { N_KNOWN = sizeof known / sizeof *known };

/* Returns the list if it has n items; otherwise memory ran out, and it is freed and NULL is returned. */
static json_t *whole_list(json_t *list, size_t n)
{
    if (json_array_size(list) == n)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *known_json(void)
{
    json_t *list = json_array();
    for (int i = 0; i < N_KNOWN; i++)
        json_array_append_new(list, json_pack("{ss ss ss}", "architecture", known[i].architecture, "models",
                                              known[i].models, "status", known[i].status));
    return json_pack("{so}", "known", whole_list(list, N_KNOWN));
}

static void print_known(void)
{
    printf("%-16s %-52s %s\n", "architecture", "models", "status");
    for (int i = 0; i < N_KNOWN; i++)
        printf("%-16s %-52s %s\n", known[i].architecture, known[i].models, known[i].status);
    printf("\nexact at toy size: a small model of random weights has the logits of an independent engine or model\n"
           "run with published weights: no family so far\n"
           "experimental: made of other families' parts; not compared with another engine\n");
}

/* ---- what is here ----------------------------------------------------------------------------------------------- */

static bool is_whole(const struct cached_model *m)
{
    return m->n_whole == m->n_parts;
}

static json_t *model_json(const struct cached_model *m)
{
    return json_pack("{so so sI sI si si sb}", "name", json_text(m->name, strlen(m->name)), "path",
                     json_text(m->path, strlen(m->path)), "size_bytes", (json_int_t)m->n_bytes, "here_bytes",
                     (json_int_t)m->n_there, "files", m->n_parts, "whole_files", m->n_whole, "complete", is_whole(m));
}

static json_t *here_json(const struct cached_models *models, const struct aliases *aliases)
{
    json_t *list = json_array(), *names = json_object();
    for (size_t i = 0; i < models->n; i++)
        json_array_append_new(list, model_json(&models->models[i]));
    bool is_whole_object = true;
    for (size_t i = 0; i < aliases->n; i++)
        is_whole_object &=
            json_object_set_new(names, aliases->list[i].name,
                                json_text(aliases->list[i].target, strlen(aliases->list[i].target))) == 0;
    list = whole_list(list, models->n);
    if (!is_whole_object) {
        json_decref(names);
        names = NULL;
    }
    return json_pack("{so so}", "models", list, "aliases", names);
}

static void print_state(const struct cached_model *m)
{
    if (is_whole(m))
        printf("complete\n");
    else if (m->n_parts > 1)
        printf("%d of %d files\n", m->n_whole, m->n_parts);
    else if (m->n_bytes)
        printf("%.0f%% of %.2f GB\n", 100.0 * (double)m->n_there / (double)m->n_bytes, (double)m->n_bytes / 1e9);
    else
        printf("a part\n");
}

static void print_here(const struct cached_models *models, const struct aliases *aliases)
{
    char shown[PRINTABLE_FORMAT_BYTES];
    if (models->n == 0)
        fprintf(stderr, "There is no model here yet: `moebius pull` fetches one.\n");
    for (size_t i = 0; i < models->n; i++) {
        const struct cached_model *m = &models->models[i];
        (void)printable_line(m->name, strlen(m->name), shown, sizeof shown);
        printf("%-64s %8.2f GB  ", shown, (double)m->n_there / 1e9);
        print_state(m);
    }
    for (size_t i = 0; i < aliases->n; i++) {
        (void)printable_line(aliases->list[i].target, strlen(aliases->list[i].target), shown, sizeof shown);
        printf("%s = %s\n", aliases->list[i].name, shown);
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

/* Prints and closes it. */
static err_code print_json(json_t *j, struct err *e)
{
    char *text = j ? json_write(j, JSON_INDENT(2), NULL) : NULL;
    json_decref(j);
    if (!text)
        return err_nomem(e, BUFSIZ, "a list of models");
    puts(text);
    mem_free(text);
    return ERR_OK;
}

static err_code list(bool json, struct err *e)
{
    struct hub_places places;
    struct cached_models models = {0};
    struct aliases aliases = {0};
    TRY(hub_places_find(&places, e));
    err_code code = hub_cache_list(&places, &models, e);
    if (code == ERR_OK)
        code = aliases_read(places.aliases, &aliases, e);
    if (code == ERR_OK && json)
        code = print_json(here_json(&models, &aliases), e);
    else if (code == ERR_OK)
        print_here(&models, &aliases);
    cached_models_close(&models);
    aliases_close(&aliases);
    return code;
}

static int run(const struct command *c, int argc, char **argv)
{
    bool json = false, is_known = false, no_sandbox = false;
    const struct option options[] = {
        {"--json", OPT_FLAG, &json, "", "print one JSON object", 0, 0, 0},
        {"--known", OPT_FLAG, &is_known, "", "list supported model families and how well each is tested", 0, 0, 0},
        SANDBOX_OPTION(no_sandbox),
    };
    struct err e = {0};
    err_code code = cli_begin(c, options, N_OPTIONS(options), &argc, argv, &e);
    if (code == ERR_OK && is_known && json)
        code = print_json(known_json(), &e);
    else if (code == ERR_OK && is_known)
        print_known();
    else if (code == ERR_OK)
        code = list(json, &e);
    return cli_exit(c, code, &e);
}

const struct command cmd_list = {
    .name = "list",
    .usage = "[--json] [--known]",
    .summary = "list the models that are here, or the supported families",
    .details = "Shows models in the Hub's cache and from other addresses under the names that -m takes, incomplete "
               "downloads, and aliases.",
    .hub = HUB_READS,
    .group = COMMAND_MODELS,
    .run = run,
};
