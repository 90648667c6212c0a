#define _GNU_SOURCE
#include "base/random.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

struct random random_seed(uint64_t seed)
{
    struct random r = {0};
    random_u32(&r);
    r.state += seed;
    random_u32(&r);
    return r;
}

uint32_t random_u32(struct random *r)
{
    uint64_t old = r->state;
    r->state = old * 6364136223846793005u + 1442695040888963407u;
    uint32_t xorshifted = (uint32_t)(((old >> 18) ^ old) >> 27);
    uint32_t rot = (uint32_t)(old >> 59);
    return (xorshifted >> rot) | (xorshifted << ((32 - rot) & 31));
}

double random_unit(struct random *r)
{
    uint64_t hi = random_u32(r) >> 5, lo = random_u32(r) >> 6;
    return (double)(hi << 26 | lo) / 9007199254740992.0;
}

err_code random_from_system(void *bytes, size_t n, struct err *e)
{
    ssize_t got;
    do
        got = getrandom(bytes, n, 0); /* up to 256 bytes come all at once */
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)n ? ERR_OK
                             : err_set(e, ERR_IO, "random numbers from the system (getrandom): %s", strerror(errno));
}
