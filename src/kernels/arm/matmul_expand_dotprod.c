#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/lanes_neon.h"

enum { TILE = 4 }; /* most tokens of a register tile */

#include "kernels/arm/dot_lane_dotprod.h"
#include "kernels/arm/dot_run_neon.h"

#include "kernels/arm/dot_neon.h"
#include "kernels/arm/expand_dot_neon.h"
#include "kernels/arm/expand_ops_neon.h"

#define EX_NAME(type) matmul_##type##_dotprod
#include "kernels/body/expand_template.h"
