/* The files that GPUs need: those that their drivers open, and where the Vulkan loader finds drivers. */
#ifndef CLI_GPU_FILES_H
#define CLI_GPU_FILES_H

#include "base/err.h"
#include "base/sandbox.h"

/* The value of --gpu if neither --gpu nor --devices is given: MOEBIUS_GPU in the environment, or else "auto" if the
 * machine has device files of GPUs; NULL: no GPU. */
const char *gpu_files_default(void);

/* Lets the sandbox reach the device files, and drivers wherever the loader looks for them: in the system's folders, in
 * those that XDG_CONFIG_HOME, XDG_DATA_HOME and the like name, and in VK_DRIVER_FILES and related variables. */
MUST_USE err_code gpu_files_allow(struct sandbox *s, struct err *e);

#endif
