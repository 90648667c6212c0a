#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/vnni_avx512.h"

enum { TILE = 8 }; /* most tokens of a register tile */

#include "kernels/x86/expand_dot_vnni.h"
#include "kernels/x86/expand_ops_avx512vbmi.h"

#define EX_NAME(type) matmul_##type##_avx512vbmi
#include "kernels/body/expand_template.h"
