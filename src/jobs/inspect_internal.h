/* What the files of inspect share. */
#ifndef JOBS_INSPECT_INTERNAL_H
#define JOBS_INSPECT_INTERNAL_H

#include "backend/backend.h"
#include "engine/device_options.h"
#include "gguf/gguf_facts.h"
#include "jobs/inspect.h"
#include "model/model.h"
#include "store/store.h"

enum { INSPECT_FIRST_VALUES = 8 };

/* Over the values that are neither NaN nor infinite; all 0 when there are none. */
struct inspect_stats {
    uint64_t n_values, n_nan, n_inf;
    double min, max, mean, std; /* std: of the population */
    float first[INSPECT_FIRST_VALUES];
    int n_first;
};

/* Reads and decodes the whole tensor, a piece at a time. */
MUST_USE err_code inspect_measure_tensor(struct inspect_stats *out, struct store *s, const struct gguf_tensor *t,
                                         struct err *e);

/* Lines of words about a layer. */
struct inspect_words {
    char s[768];
    size_t n;
};

/* Layers sorted into groups of which the same words are true, in order of first appearance. */
struct inspect_groups {
    int n;
    int *of_layer; /* [n_layer] */
    struct inspect_words **words;
};

/* Which device would have which experts. */
struct inspect_division {
    struct device_options asked;
    size_t *slot_bytes; /* [n_moe_layer] of an expert; owned */
    struct division division;
};

/* How the model works, told by the description that running it would start from. */
struct inspect_layout {
    struct backend *device;
    struct model *model; /* NULL: it can't be run, and error says why */
    struct err error;
    char warning[ERR_TEXT_BYTES]; /* what loading warned of, "" for nothing */
    struct inspect_groups mixing, feed_forward;
    struct inspect_words around; /* what is not a layer's */
    /* what a token reads of those before it: bytes for each position, and for each of the last `window`; bytes of
     * recurrent state whatever the position */
    uint64_t kv_bytes, window_kv_bytes, recurrent_bytes;
    int64_t window;
    struct inspect_division division; /* n_place 0: nobody asked */
    struct arena arena;
};

/* A model that can't be run is no failure. Close it in any case. */
MUST_USE err_code inspect_layout_open(struct inspect_layout *l, const struct gguf *g, const struct model_facts *f,
                                      struct err *e);
void inspect_layout_close(struct inspect_layout *l);
/* Divides the experts as asked. Close it after a failure, too. */
MUST_USE err_code inspect_division_open(struct inspect_division *d, const struct inspect_params *p,
                                        const struct gguf *g, const struct model *m, struct err *e);
void inspect_division_close(struct inspect_division *d);
/* Whether a place has an expert of a MoE layer; how many experts it has, and what slots for them take. */
bool inspect_division_has(const struct inspect_division *d, int place, int layer, int64_t expert);
uint64_t inspect_division_n_replica(const struct inspect_division *d, int place); /* experts that others have, too */
void inspect_division_sum(const struct inspect_division *d, const struct model *m, int place, uint64_t *n_expert,
                          uint64_t *n_bytes);

/* The first layer of a group from `from` on, or n_layer. */
int64_t inspect_group_next(const struct inspect_layout *l, const struct inspect_groups *g, int group, int64_t from);

/* What a recurrent layer is, without an article. */
const char *inspect_recurrence(enum recurrence kind);

void inspect_text_model(FILE *out, const struct gguf *g, const struct model_facts *f, const struct inspect_layout *l);
void inspect_text_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                         const struct inspect_stats *stats);

MUST_USE err_code inspect_json_model(FILE *out, const struct gguf *g, const struct model_facts *f,
                                     const struct inspect_layout *l, struct err *e);
MUST_USE err_code inspect_json_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                                      const struct inspect_stats *stats, struct err *e);

/* "Q4_K", or "type 158 (unknown)". */
struct inspect_type_text {
    char s[32];
};
struct inspect_type_text inspect_type_name(uint32_t type_id, const struct quant_info *info);

#endif
