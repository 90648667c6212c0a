/* What the files of inspect share. */
#ifndef JOBS_INSPECT_INTERNAL_H
#define JOBS_INSPECT_INTERNAL_H

#include "gguf/gguf_facts.h"
#include "jobs/inspect.h"
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

void inspect_text_model(FILE *out, const struct gguf *g, const struct model_facts *f);
void inspect_text_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                         const struct inspect_stats *stats);

MUST_USE err_code inspect_json_model(FILE *out, const struct gguf *g, const struct model_facts *f, struct err *e);
MUST_USE err_code inspect_json_tensor(FILE *out, const struct gguf *g, const struct gguf_tensor *t,
                                      const struct inspect_stats *stats, struct err *e);

/* The bytes of the UTF-8 character at s (1 to 4, n > 0), or 0 when there is no valid one. */
size_t inspect_utf8_length(const char *s, size_t n);

/* "Q4_K", or "type 158 (unknown)". */
struct inspect_type_text {
    char s[32];
};
struct inspect_type_text inspect_type_name(uint32_t type_id, const struct quant_info *info);

#endif
