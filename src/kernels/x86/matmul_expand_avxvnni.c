#include "kernels/x86/kernels_x86.h"
#include "kernels/x86/vnni_avx2.h"

enum { TILE = 4 }; /* most tokens of a register tile */

#include "kernels/x86/expand_dot_vnni.h"
#include "kernels/x86/expand_ops_avx2.h"

#define EX_NAME(type) matmul_##type##_avxvnni
#include "kernels/body/expand_template.h"
