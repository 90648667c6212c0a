#include "server/hide_folders.h"

#include <string.h>

/* Takes n bytes out of a sentence. */
static void cut(char *at, size_t n)
{
    memmove(at, at + n, strlen(at + n) + 1);
}

void hide_folders(const char *model, struct err *e)
{
    const char *slash = strrchr(model, '/');
    size_t n = slash ? (size_t)(slash - model) + 1 : 0; /* of the model's folder, which may have spaces */
    for (char *p = e->text; n > 1 && *p;)
        if (strncmp(p, model, n) == 0)
            cut(p, n);
        else
            p++;
    for (char *p = e->text; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
        char *begin = p + strspn(p, "\"(");
        for (size_t k = strcspn(begin, " "); *begin == '/' && k > 1; k--)
            if (begin[k - 1] == '/')
                cut(begin, k);
    }
}
