/* Encoders of the trellis formats, whose rows have a scale that their blocks share. Internal to the room. */
#ifndef QUANT_QUANT_ENCODE_KT_H
#define QUANT_QUANT_ENCODE_KT_H

#include "quant/quant.h"

/* What the seeds of the formats stand for, arranged for searching; constant, so threads may share it. NULL when there
 * is no memory: about KT_TABLE_BYTES. */
enum { KT_TABLE_BYTES = 3 << 20 };
struct kt_tables;
struct kt_tables *kt_tables_create(void);
void kt_tables_close(struct kt_tables **t);

/* A row of q, one of the trellis formats; the rest as quant_encode_rows. */
void kt_encode_row(const struct kt_tables *t, const struct quant_info *q, const float *x, const float *importance,
                   void *row, int64_t n);

#endif
