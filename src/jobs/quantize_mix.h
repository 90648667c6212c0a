/* Which type each tensor gets: rules decide first, then a preset or a single type. Internal to quantize. */
#ifndef JOBS_QUANTIZE_MIX_H
#define JOBS_QUANTIZE_MIX_H

#include <stdbool.h>

#include "base/err.h"
#include "gguf/gguf.h"

struct mix;

/* type: the name of a preset or of a weight type. pure: all matrices get that weight type. rules [n_rule]:
 * "REGEX=TYPE", borrowed; the first whose expression (PCRE2) matches within a tensor's name decides. n_layer: the
 * model's layers. */
MUST_USE err_code mix_create(struct mix **out, const char *type, bool pure, const char *const *rules, int n_rule,
                             uint32_t n_layer, struct err *e);
void mix_close(struct mix **m);

/* The type that a tensor gets. Vectors, routers, norms and small convolutions keep their own. *fallback: the type that
 * it should have had, but whose blocks don't divide the rows; else NULL. */
const struct quant_info *mix_choose(struct mix *m, const struct gguf_tensor *t, const struct quant_info **fallback);

/* ERR_USAGE when a rule matched none of the tensors that could change: it is mistaken. */
MUST_USE err_code mix_check_rules(const struct mix *m, struct err *e);

/* The number that files state as "general.file_type". */
uint32_t mix_file_type(const struct mix *m);

#endif
