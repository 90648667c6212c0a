#define _GNU_SOURCE /* files of a store: opened twice, through the page cache and past it */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_io.h"
#include "base/mem.h"
#include "store/store_internal.h"

/* Opening with O_DIRECT says little: some file systems refuse only when something is read. */
static int open_direct(const char *path, int *refusal)
{
    int fd = file_open(path, O_RDONLY | O_DIRECT, 0);
    void *block = mem_alloc_aligned(STORE_ALIGN, STORE_ALIGN);
    bool works = fd >= 0 && block && pread(fd, block, STORE_ALIGN, 0) >= 0;
    if (!works) {
        *refusal = block ? errno : ENOMEM;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    mem_free(block);
    return fd;
}

err_code store_file_open(struct store_file *f, const char *path, struct err *e)
{
    struct stat st;
    *f = (struct store_file){.path = path, .direct_fd = -1};
    f->fd = file_open(path, O_RDONLY | O_NONBLOCK, 0); /* of a FIFO, too, without waiting for a writer */
    if (f->fd < 0 || fstat(f->fd, &st) != 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a regular file", path);
    f->n_bytes = (uint64_t)st.st_size;
    f->direct_fd = open_direct(path, &f->direct_refusal);
    return ERR_OK;
}

void store_file_close(struct store_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->direct_fd >= 0)
        close(f->direct_fd);
}
