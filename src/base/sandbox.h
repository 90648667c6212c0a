/* What a process gives up for good before it reads what strangers wrote: all files but those it names (Landlock), and
 * the system calls by which somebody who took it over would reach beyond it (seccomp). Both need no privilege, bind the
 * calling thread and the threads and processes that it makes later, and can't be left again: enter before any thread
 * is made. Where the kernel lacks one of the two it is left out, silently.
 *
 * Denied are, with EPERM: starting other programs, sockets, other processes' memory, mounts and namespaces, kernel
 * modules, keys, clocks and the like, changing modes and owners of files by name (which Landlock doesn't see), and
 * typing into the terminal (TIOCSTI). That is a list of what is denied, not of what is allowed. The second kind is
 * stricter but breaks: which calls the C library, hwloc, liburing and sanitizers make changes with their versions, and
 * the one that was forgotten fails in the middle of somebody's work. What the first kind lets pass works on files and
 * memory that the process has anyway.
 *
 * Requests in an io_uring don't pass seccomp, only Landlock: who needs no ring is denied to make one; who needs one
 * could open sockets through it, of which Landlock stops TCP (from Linux 6.7 on) and abstract ones (from 6.12). */
#ifndef BASE_SANDBOX_H
#define BASE_SANDBOX_H

#include <stdbool.h>

#include "base/err.h"

struct sandbox {
    int landlock;   /* the kernel's version of it; 0: none */
    unsigned needs; /* enum sandbox_needs, or'ed */
    int ruleset_fd; /* -1: closed, or there is no Landlock */
};

/* A folder stands for all below it. Writing is reading, too, and making and removing files; removing is no more than
 * that, of files in a folder; keeping is writing, and making links and removing folders. Of devices all may be written
 * and controlled (ioctl), which takes the right to write alone on kernels before 6.10. Nobody may execute. */
enum sandbox_access { SANDBOX_READ, SANDBOX_WRITE, SANDBOX_REMOVE, SANDBOX_KEEP, SANDBOX_DEVICES };

/* What the kernel has: the version of Landlock's interface, 0 for none, and seccomp. */
int sandbox_landlock_version(void);
bool sandbox_has_seccomp(void);

/* What is special, or'ed: rings of io_uring may be made; connections may be taken from a socket that listens already;
 * seccomp binds the threads, too, that a library has made before (Landlock can't); sockets may be made and connected
 * to others, but not listen. */
enum sandbox_needs {
    SANDBOX_IO_URING = 1,
    SANDBOX_ACCEPT = 2,
    SANDBOX_ALL_THREADS = 4,
    SANDBOX_CONNECT = 8,
};

/* needs: enum sandbox_needs. Close after failures, too. */
MUST_USE err_code sandbox_open(struct sandbox *s, unsigned needs, struct err *e);
void sandbox_close(struct sandbox *s);

/* What doesn't exist or may not be opened is passed over: whoever needs it will fail as without a sandbox. */
MUST_USE err_code sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access, struct err *e);

/* From here on the calling thread may do no more than was allowed. */
MUST_USE err_code sandbox_enter(struct sandbox *s, struct err *e);

#endif
