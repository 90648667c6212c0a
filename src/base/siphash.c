#define _GNU_SOURCE
#include "base/siphash.h"

#include <errno.h>
#include <sys/random.h>

err_code siphash_key_make(struct siphash_key *key, struct err *e)
{
    ssize_t n;
    do
        n = getrandom(key, sizeof *key, 0); /* so few bytes come all at once */
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *key
               ? ERR_OK
               : err_set(e, ERR_IO, "random numbers from the system (getrandom): %s", strerror(errno));
}
