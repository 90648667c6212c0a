/* A file that says how far a measurement of perplexity has come. A later run goes on from it, and gets the same digits.
 *
 *     moebius ppl 1
 *     model 0123456789abcdef         which weights (store_fingerprint)
 *     text 0123456789abcdef          a hash of the tokens
 *     settings ctx 512 kv f16 ...    what decides the figures besides them
 *     windows 12 scored 3060 same 2901
 *     sums 400c3e57a9b2d1f0 ...      six sums, as the bits of double-precision numbers
 *
 * Refused with a sentence that names the line: files of another model, text or settings, and broken ones. */
#ifndef JOBS_PPL_RESUME_H
#define JOBS_PPL_RESUME_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { PPL_SETTINGS_BYTES = 256 };

struct ppl_identity {
    uint64_t model, text;
    char settings[PPL_SETTINGS_BYTES]; /* words with single spaces */
};

/* Sums over the scored tokens. */
struct ppl_sums {
    int64_t n_window, n_scored, n_same;
    double nll, nll_squared, difference, difference_squared; /* of the negative log-likelihoods */
    double divergence, divergence_squared;
};

/* The hashes of a model's file and of tokens; the settings are the caller's to fill in. */
MUST_USE err_code ppl_identify(struct ppl_identity *id, const char *model_path, const int32_t *ids, size_t n,
                               struct err *e);

/* Parses n bytes of such a file; `name` is for messages. */
MUST_USE err_code ppl_resume_parse(const struct ppl_identity *id, const char *text, size_t n, const char *name,
                                   struct ppl_sums *out, struct err *e);

/* A file that is missing gives zero sums. */
MUST_USE err_code ppl_resume_load(const struct ppl_identity *id, const char *path, struct ppl_sums *out, struct err *e);
/* The file appears under its name when it is complete. */
MUST_USE err_code ppl_resume_save(const struct ppl_identity *id, const char *path, const struct ppl_sums *s,
                                  struct err *e);

#endif
