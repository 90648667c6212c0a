#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/v16_avx512.h"

#define FLOAT_NAME(type) matmul_##type##_avx512
#include "kernels/body/float_template.h"
