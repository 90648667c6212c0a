/* Writes the receipt of a run: a record of how fast it was (engine/receipts_file.h), from which later runs are
 * forecast.
 */
#ifndef CLI_LEAVE_RECEIPT_H
#define CLI_LEAVE_RECEIPT_H

#include "base/log.h"
#include "cli/model_options.h"
#include "planner/machine.h"
#include "texts/texts.h"

/* A row for the tables of commands that leave one. */
#define RECEIPT_OPTION(o)                                                                                              \
    {                                                                                                                  \
        "--no-receipt", OPT_FLAG, &(o).no_receipt, "", "do not record the speed (see `moebius receipts`)", 0, 0, 0     \
    }

/* A phase of a run is recorded only if it had at least so many tokens and took at least so long. */
enum { RECEIPT_MIN_PREFILL = 64, RECEIPT_MIN_DECODE = 32, RECEIPT_MIN_NS = 500000000 };

/* What was measured. */
struct run_figures {
    const char *method;                     /* the command */
    int64_t n_prefill, prefill_ns;          /* tokens of prompts, and the time for them */
    int64_t n_decoded, decode_ns;           /* tokens decoded, of all texts, and the time for them */
    int64_t n_texts;                        /* mean number of texts decoded together */
    int64_t n_ctx;                          /* mean number of tokens before a decoded one */
    int64_t n_prompt;                       /* tokens of one prompt */
    int64_t prompt_from;                    /* tokens in the context before the prompt */
    double prefill_ceiling, decode_ceiling; /* tokens a second, measured during the run; 0: not known */
    double rates[MACHINE_N_RATE];           /* of the machine, measured during the run; 0: not known */
    bool varies;                            /* texts came and went, so their mean number does not give their memory */
};

/* Writes a receipt, unless the options or MOEBIUS_NO_RECEIPT forbid it, no phase was long enough, or the run was only
 * for checks (--reference, --check-ops). A failure is a warning on standard error. */
void cli_leave_receipt(const struct model_options *o, const moebius_engine *engine, const struct run_figures *f);

/* The same for a run of many texts. */
void cli_leave_texts_receipt(const struct model_options *o, const moebius_engine *engine, const char *method,
                             const struct texts_stats *stats);

/* A log sink (struct log) for messages about the receipts' file: prints them on standard error. */
void cli_receipt_warning(void *user, enum log_level level, const char *line);

#endif
