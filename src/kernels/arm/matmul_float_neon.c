#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/v16_neon.h"

#define FLOAT_NAME(type) matmul_##type##_neon
#include "kernels/body/float_template.h"
