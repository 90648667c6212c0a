#include "base/siphash.h"

#include "base/random.h"

err_code siphash_key_make(struct siphash_key *key, struct err *e)
{
    return random_from_system(key, sizeof *key, e);
}
