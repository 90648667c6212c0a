/* CRC32C (Castagnoli; RFC 3720 appendix B.4), the checksum of what moebius writes to disk. */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues the checksum `crc` (0 to begin) with n more bytes and returns the new one. Uses the processor's instruction
 * where there is one. Thread-safe. */
uint32_t crc32c(uint32_t crc, const void *p, size_t n);

/* The same in plain C, for processors without the instruction. */
uint32_t crc32c_portable(uint32_t crc, const void *p, size_t n);

#endif
