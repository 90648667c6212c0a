/* The files of the page (the folder web/), which tools/embed_files.py makes part of the program. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* "main.js" */
    const char *type; /* the content's */
    const char *etag; /* of the bytes, with its quotes */
    const char *text; /* [n], NUL-terminated, and with no other NUL */
    size_t n;
};

extern const struct page_file page_files[];
extern const size_t page_n_files;

#endif
