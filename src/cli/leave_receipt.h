/* What a run leaves behind: a receipt of how fast it was (engine/receipts_file.h), from which later ones are forecast.
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

/* What is worth a receipt: a phase counts from so many of its tokens on, and when it took so long. */
enum { RECEIPT_MIN_PREFILL = 64, RECEIPT_MIN_DECODE = 32, RECEIPT_MIN_NS = 500000000 };

/* What was measured. */
struct run_figures {
    const char *method;                     /* the command */
    int64_t n_prefill, prefill_ns;          /* tokens of prompts, and their time */
    int64_t n_decoded, decode_ns;           /* tokens one by one, of all texts */
    int64_t n_texts;                        /* that decoded together, in the mean */
    int64_t n_ctx;                          /* tokens before the decoded ones, in the mean */
    int64_t n_prompt;                       /* of one prompt */
    int64_t prompt_from;                    /* tokens in the context before it */
    double prefill_ceiling, decode_ceiling; /* tokens a second, as measured beside it; 0: not known */
    double rates[MACHINE_N_RATE];           /* of the machine, measured beside it; 0: not known */
    bool varies;                            /* texts came and went: their mean says nothing of the memory they took */
};

/* Leaves one, unless the options or MOEBIUS_NO_RECEIPT say no, nothing was measured for long enough, or what ran is no
 * way to run (--reference, --check-ops). A failure is a warning on standard error. */
void cli_leave_receipt(const struct model_options *o, const moebius_engine *engine, const struct run_figures *f);

/* The same of many texts. */
void cli_leave_texts_receipt(const struct model_options *o, const moebius_engine *engine, const char *method,
                             const struct texts_stats *stats);

/* A line on standard error for what happened to the file, as struct log takes it. */
void cli_receipt_warning(void *user, enum log_level level, const char *line);

#endif
