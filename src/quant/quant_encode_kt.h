/* Encoders for the trellis formats, in which all blocks of a row share a scale. For this folder only. */
#ifndef QUANT_QUANT_ENCODE_KT_H
#define QUANT_QUANT_ENCODE_KT_H

#include "quant/quant.h"

/* The weights that each seed of the formats stands for, arranged for searching. The tables are constant, so threads may
 * share them. NULL when out of memory: they take about KT_TABLE_BYTES. */
enum { KT_TABLE_BYTES = 3 << 20 };
struct kt_tables;
struct kt_tables *kt_tables_create(void);
void kt_tables_close(struct kt_tables **t);

/* Encodes a row in format q, one of the trellis formats; the other parameters are those of quant_encode_rows. */
void kt_encode_row(const struct kt_tables *t, const struct quant_info *q, const float *x, const float *importance,
                   void *row, int64_t n);

#endif
