/* The encoders with the lanes of encode_lanes_avx512.h. */
#include "quant/encode_lanes_avx512.h"
#define ENCODERS encoders_avx512
#include "quant/encode_table.h"
