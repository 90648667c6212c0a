#include "kernels/arm/kernels_arm.h"
#include "kernels/arm/lanes_neon.h"

enum { TILE = 4 }; /* most tokens of a register tile */

#include "kernels/arm/dot_lane_neon.h"
#include "kernels/arm/dot_run_neon.h"

#include "kernels/arm/dot_neon.h"

#define R16_NAME(type) matmul_##type##_neon
#include "kernels/body/r16_template.h"

#define PEAK_NAME(what) peak_##what##_neon
#include "kernels/body/peak_template.h"
