#include "base/random.h"

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
