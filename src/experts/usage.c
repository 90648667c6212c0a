#include "experts/usage.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/model_limits.h"
#include "base/output_file.h"
#include "base/text_scanner.h"

/* A layer that chose this often is halved before more is added. */
enum { MANY = 1 << 22 };

err_code usage_create(struct usage *u, int n_layer, int64_t n_expert, struct err *e)
{
    *u = (struct usage){.n_layer = n_layer, .n_expert = n_expert};
    u->count = mem_calloc((size_t)n_layer * (size_t)n_expert, sizeof *u->count);
    u->total = mem_calloc((size_t)n_layer, sizeof *u->total);
    if (u->count && u->total)
        return ERR_OK;
    usage_close(u);
    return err_nomem(e, (size_t)n_layer * (size_t)n_expert * sizeof *u->count, "usage counts");
}

void usage_close(struct usage *u)
{
    mem_free(u->count);
    mem_free(u->total);
    *u = (struct usage){0};
}

void usage_add(struct usage *u, int layer, const int32_t *ids, size_t n)
{
    uint64_t *count = u->count + (int64_t)layer * u->n_expert;
    for (size_t i = 0; i < n; i++)
        count[ids[i]]++;
    u->total[layer] += n;
}

void usage_merge(struct usage *u, const struct usage *other)
{
    assert(u->n_layer == other->n_layer && u->n_expert == other->n_expert);
    for (int l = 0; l < u->n_layer; l++) {
        uint64_t *count = u->count + l * u->n_expert, total = 0;
        int shift = u->total[l] > MANY ? 1 : 0;
        for (int64_t i = 0; i < u->n_expert; i++) {
            count[i] = (count[i] >> shift) + other->count[l * u->n_expert + i];
            total += count[i];
        }
        u->total[l] = total;
    }
}

double usage_rate(const struct usage *u, int layer, int32_t expert, int64_t n_used)
{
    uint64_t total = u->total[layer];
    return total ? (double)u->count[layer * u->n_expert + expert] * (double)n_used / (double)total : 0;
}

/* Makes counts those of n_layer layers: there are none of layers behind the last. */
static err_code take_layers(struct usage *u, int n_layer, struct err *e)
{
    struct usage all;
    int n = u->n_layer < n_layer ? u->n_layer : n_layer;
    if (u->n_layer == n_layer)
        return ERR_OK;
    TRY(usage_create(&all, n_layer, u->n_expert, e));
    memcpy(all.count, u->count, (size_t)n * (size_t)u->n_expert * sizeof *all.count);
    memcpy(all.total, u->total, (size_t)n * sizeof *all.total);
    usage_close(u);
    *u = all;
    return ERR_OK;
}

err_code usage_parse(struct usage *u, const char *text, size_t n, const char *name, uint64_t fingerprint, int n_layer,
                     int64_t n_expert, struct err *e)
{
    struct text_scanner w = {.p = text, .end = text + n, .name = name};
    uint64_t model, layers, experts;
    *u = (struct usage){0};
    TRY(text_scanner_literal(&w, "moebius usage 1", e));
    TRY(text_scanner_literal(&w, "model", e));
    TRY(text_scanner_hex(&w, "the model's fingerprint", &model, e));
    if (fingerprint && model != fingerprint)
        return err_set(e, ERR_FORMAT, "%s: usage of another model (%016" PRIx64 "), expected %016" PRIx64, name, model,
                       fingerprint);
    TRY(text_scanner_literal(&w, "layers", e));
    TRY(text_scanner_number(&w, "layers", 1, LIMIT_LAYERS, &layers, e));
    TRY(text_scanner_literal(&w, "experts", e));
    TRY(text_scanner_number(&w, "experts", 1, LIMIT_EXPERTS, &experts, e));
    if ((n_layer && abs((int)layers - n_layer) > LIMIT_MTP) || (n_expert && (int64_t)experts != n_expert))
        return err_set(e, ERR_FORMAT, "%s: usage of %" PRIu64 " layers of %" PRIu64 " experts, expected %d of %" PRId64,
                       name, layers, experts, n_layer, n_expert);
    if (layers * experts > n / 2) /* a digit and a space each */
        return err_set(e, ERR_FORMAT, "%s: too short for %" PRIu64 " layers of %" PRIu64 " experts", name, layers,
                       experts);
    TRY(usage_create(u, (int)layers, (int64_t)experts, e));
    err_code code = ERR_OK;
    for (uint64_t i = 0; i < layers * experts && code == ERR_OK; i++) {
        code = text_scanner_number(&w, "a count", 0, UINT64_MAX >> 20, &u->count[i], e);
        u->total[i / experts] += u->count[i];
    }
    if (code == ERR_OK)
        code = text_scanner_end(&w, e);
    if (code == ERR_OK && n_layer)
        code = take_layers(u, n_layer, e);
    if (code != ERR_OK)
        usage_close(u);
    return code;
}

void usage_print(const struct usage *u, uint64_t fingerprint, FILE *f)
{
    fprintf(f, "moebius usage 1\nmodel %016" PRIx64 "\nlayers %d experts %" PRId64 "\n", fingerprint, u->n_layer,
            u->n_expert);
    for (int l = 0; l < u->n_layer; l++)
        for (int64_t i = 0; i < u->n_expert; i++)
            fprintf(f, "%" PRIu64 "%c", u->count[l * u->n_expert + i], i + 1 < u->n_expert ? ' ' : '\n');
}

err_code usage_save(const struct usage *u, const char *path, uint64_t fingerprint, struct err *e)
{
    struct output_file f;
    TRY(output_file_open(&f, path, e));
    usage_print(u, fingerprint, f.stream);
    return output_file_finish(&f, e);
}
