#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/v16_neon.h"

#define OPS_NAME(op) op##_neon
#include "kernels/body/ops_template.h"
