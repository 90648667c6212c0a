#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/v16_avx2.h"

#define OPS_NAME(op) op##_avx2
#include "kernels/body/ops_template.h"
