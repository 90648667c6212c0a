/* The files of the web page (the folder web/), which tools/embed_files.py compiles into the program. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

struct page_file {
    const char *name; /* "main.js" */
    const char *type; /* Content-Type */
    const char *etag; /* of the contents, with its quotes */
    const char *text; /* [n] and a NUL; holds no other NUL */
    size_t n;
};

extern const struct page_file page_files[];
extern const size_t page_n_files;

#endif
