#include "hub/pull.h"

#include <stddef.h>

err_code pull_open(struct pull **out, const struct model_name *name, const char *text, const struct pull_options *o,
                   struct err *e)
{
    *out = NULL;
    return err_set(e, ERR_UNSUPPORTED,
                   "%s: it is not here, and this build can't fetch models (it lacks libcurl or nettle)", text);
}

void pull_close(struct pull **p)
{
}

int pull_n_files(const struct pull *p)
{
    return 0;
}

uint64_t pull_bytes(const struct pull *p)
{
    return 0;
}

uint64_t pull_there_bytes(const struct pull *p)
{
    return 0;
}

const char *pull_file_name(const struct pull *p, int i)
{
    return "";
}

uint64_t pull_file_bytes(const struct pull *p, int i)
{
    return 0;
}

/* Nobody has a struct pull here. */
err_code pull_beginning(struct pull *p, int i, uint64_t n, char *path, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "this build can't fetch models");
}

err_code pull_run(struct pull *p, char *path, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "this build can't fetch models");
}

const char *pull_library(void)
{
    return "none (built without libcurl or nettle)";
}
