/* The commands, one cmd_NAME.c each. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/options.h"

extern const struct command cmd_chat, cmd_generate, cmd_logits, cmd_ppl, cmd_profile, cmd_trace, cmd_bench,
    cmd_template, cmd_tokenize, cmd_detokenize, cmd_inspect, cmd_prepare, cmd_verify, cmd_quantize, cmd_imatrix,
    cmd_tune, cmd_version;

#endif
