#include "server/random_id.h"

#include <stdint.h>
#include <stdio.h>

#include "base/random.h"

err_code random_id(char id[RANDOM_ID_BYTES], struct err *e)
{
    uint64_t bits[2];
    TRY(random_from_system(bits, sizeof bits, e));
    snprintf(id, RANDOM_ID_BYTES, "%016llx%016llx", (unsigned long long)bits[0], (unsigned long long)bits[1]);
    return ERR_OK;
}
