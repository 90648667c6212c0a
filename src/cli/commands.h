/* The commands, one cmd_NAME.c each. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/options.h"
#include "moebius/moebius.h"

extern const struct command cmd_chat, cmd_generate, cmd_batch, cmd_serve, cmd_logits, cmd_ppl, cmd_profile, cmd_trace,
    cmd_bench, cmd_template, cmd_tokenize, cmd_detokenize, cmd_inspect, cmd_prepare, cmd_verify, cmd_quantize,
    cmd_imatrix, cmd_tune, cmd_grammar, cmd_devices, cmd_version, cmd_pull, cmd_list, cmd_rm, cmd_alias, cmd_doctor,
    cmd_receipts, cmd_probe, cmd_plan, cmd_completions;

/* All of them, in the order of `moebius help`: main.c's list. */
const struct command *const *commands_all(int *n);

/* Prints tokens as `moebius tokenize` does: their ids on one line or, with `pieces`, the id and the quoted text of each
 * token on a line of its own. */
void tokenize_print(const moebius_vocab *vocab, const int32_t *ids, size_t n, bool pieces);

#endif
