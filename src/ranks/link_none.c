/* The link of a build without MPI, which can't be opened: nothing else here is ever called. */
#include "ranks/link.h"

err_code link_open(struct link **out, const struct link_card *card, const struct link_params *params, struct err *e)
{
    *out = NULL;
    return err_set(e, ERR_UNSUPPORTED,
                   "several processes were started together (mpirun), and this build has no MPI: expected one process, "
                   "or a build with -Dmpi=enabled");
}

void link_close(struct link **l)
{
}

int link_rank(const struct link *l)
{
    return 0;
}

int link_n_rank(const struct link *l)
{
    return 1;
}

const struct link_card *link_card(const struct link *l, int rank)
{
    return NULL;
}

const char *link_name(const struct link *l, int rank)
{
    return "";
}

int64_t link_round_trip_ns(const struct link *l, int rank)
{
    return 0;
}

double link_bytes_per_s(const struct link *l, int rank)
{
    return 0;
}

err_code link_check(const struct link *l, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "this build has no MPI");
}

err_code link_room(struct link *l, int rank, size_t n_bytes, void **out, struct err *e)
{
    return link_check(l, e);
}

void link_send(struct link *l, int rank, size_t n_bytes)
{
}

void link_expect(struct link *l, int rank, void *head, size_t head_bytes, void *body, size_t body_bytes,
                 int64_t patience_ns)
{
}

err_code link_wait(struct link *l, int rank, const struct cancel *c, size_t *body_bytes, struct err *e)
{
    return link_check(l, e);
}

void link_cancel(struct link *l, int rank)
{
}

err_code link_take(struct link *l, const void **request, size_t *n_bytes, struct err *e)
{
    return link_check(l, e);
}

err_code link_answer(struct link *l, const void *head, size_t head_bytes, size_t n_bytes, struct err *e)
{
    return link_check(l, e);
}

bool link_is_cancelled(const struct link *l)
{
    return false;
}

void link_step(struct link *l)
{
}

void link_watch(struct link *l, bool (*is_excused)(void *user), void *user)
{
}
