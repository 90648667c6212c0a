/* Which type each tensor gets: a preset or one type, and rules that go before it. Internal to quantize. */
#ifndef JOBS_QUANTIZE_MIX_H
#define JOBS_QUANTIZE_MIX_H

#include <stdbool.h>

#include "base/err.h"
#include "gguf/gguf.h"

struct mix;

/* type: a preset's name or a type's. pure: all matrices that type. rules: "REGEX=TYPE"; the first whose expression
 * (PCRE2) is found in a tensor's name decides; borrowed. n_layer: of the model. */
MUST_USE err_code mix_create(struct mix **out, const char *type, bool pure, const char *const *rules, int n_rule,
                             uint32_t n_layer, struct err *e);
void mix_close(struct mix **m);

/* The type that a tensor is to have; its own, when it is not to be touched: vectors, routers, norms, small
 * convolutions. *fallback: the type that was wanted, when rows don't divide into its blocks; else NULL. */
const struct quant_info *mix_choose(struct mix *m, const struct gguf_tensor *t, const struct quant_info **fallback);

/* Fails when a rule was for none of the tensors that there was a choice for: a mistake in it. */
MUST_USE err_code mix_check_rules(const struct mix *m, struct err *e);

/* The number that files state as "general.file_type". */
uint32_t mix_file_type(const struct mix *m);

#endif
