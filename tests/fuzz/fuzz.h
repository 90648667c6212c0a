/* The one function of a fuzz target: libFuzzer calls it with made-up inputs, replay_main.c with those of the
 * corpus. Returns 0; a crash, a failed assert or a sanitizer's report is the finding. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
