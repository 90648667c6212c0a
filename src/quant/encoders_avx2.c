/* The encoders with the lanes of encode_lanes_avx2.h. */
#include "quant/encode_lanes_avx2.h"
#define ENCODERS encoders_avx2
#include "quant/encode_table.h"
