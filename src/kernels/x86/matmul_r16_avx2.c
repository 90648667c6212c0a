#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/lanes_avx2x2.h"

enum { TILE = 4 }; /* most tokens of a register tile */

#include "kernels/x86/dot_maddubs.h"

#define R16_NAME(type) matmul_##type##_avx2
#include "kernels/body/r16_template.h"

#define PEAK_NAME(what) peak_##what##_avx2
#include "kernels/body/peak_template.h"
