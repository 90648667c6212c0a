#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/vnni_avx512.h"

enum { TILE = 8 }; /* most tokens of a register tile */

#include "kernels/x86/dot_vnni.h"

#define R16_GROUPS     2
#define R16_NAME(type) matmul_##type##_avx512vnni
#include "kernels/body/r16_template.h"

#define PEAK_NAME(what) peak_##what##_avx512vnni
#include "kernels/body/peak_template.h"
