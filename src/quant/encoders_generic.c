/* The encoders for any machine. */
#include "quant/encode_table.h"
