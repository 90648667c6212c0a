/* Files of GPUs: what their drivers open, and where the Vulkan loader finds drivers. */
#ifndef CLI_GPU_FILES_H
#define CLI_GPU_FILES_H

#include "base/err.h"
#include "base/sandbox.h"

/* What --gpu is where neither it nor --devices is given: MOEBIUS_GPU in the environment, or else "auto" where the
 * machine has what drivers of GPUs open; NULL: none. */
const char *gpu_files_default(void);

/* Lets the sandbox have devices, and drivers wherever the loader looks for them: in the system's folders, those of
 * XDG_CONFIG_HOME, XDG_DATA_HOME and the like, and in what VK_DRIVER_FILES and its relatives name. */
MUST_USE err_code gpu_files_allow(struct sandbox *s, struct err *e);

#endif
