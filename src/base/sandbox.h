/* A sandbox: before a process reads files that strangers wrote, it gives up access to all files but those that it names
 * (Landlock), and the system calls with which an attacker who took it over could reach beyond it (seccomp). Neither
 * needs a privilege. Both bind the calling thread and all threads and processes that it creates later, and can't be
 * left again: a process should enter before it creates threads. Where the kernel lacks one of the two, that one is
 * silently left out.
 *
 * These fail with EPERM: starting other programs, sockets, other processes' memory, mounts and namespaces, kernel
 * modules, keys, clocks and the like, changing modes and owners of files by name (which Landlock doesn't cover), and
 * typing into the terminal (TIOCSTI). This is a list of denied calls. A list of allowed ones would be stricter, but
 * would break: which calls the C library, hwloc, liburing and sanitizers make changes with their versions, and a
 * forgotten call fails in the middle of somebody's work. The calls that remain work on files and memory that the
 * process has anyway.
 *
 * Requests in an io_uring bypass seccomp, but not Landlock. A process that needs no ring may therefore not create one.
 * One that needs a ring could open sockets through it, of which Landlock denies TCP (from Linux 6.7 on) and abstract
 * Unix sockets (from 6.12 on). */
#ifndef BASE_SANDBOX_H
#define BASE_SANDBOX_H

#include <stdbool.h>

#include "base/err.h"

struct sandbox {
    int landlock;   /* the version of Landlock that the kernel has; 0: none */
    unsigned needs; /* enum sandbox_needs, or'ed */
    int ruleset_fd; /* -1: it is closed, or the kernel has no Landlock */
};

/* What may be done with a file, or with everything below a folder. Nothing may be executed. */
enum sandbox_access {
    SANDBOX_READ,
    SANDBOX_WRITE,  /* reading, writing, and creating and removing files */
    SANDBOX_REMOVE, /* removing files from a folder, and nothing else */
    SANDBOX_KEEP,   /* as SANDBOX_WRITE, and creating links and removing folders */
    SANDBOX_DEVICES /* reading, writing and ioctl, which kernels before 6.10 permit with writing */
};

/* What the kernel has: the version of Landlock's interface (0: none), and seccomp. */
int sandbox_landlock_version(void);
bool sandbox_has_seccomp(void);

/* What a process needs beyond the usual, or'ed. */
enum sandbox_needs {
    SANDBOX_IO_URING = 1,    /* it creates io_uring rings */
    SANDBOX_ACCEPT = 2,      /* it accepts connections from a socket that listens already */
    SANDBOX_ALL_THREADS = 4, /* a library has created threads before: seccomp binds them, too (Landlock can't) */
    SANDBOX_CONNECT = 8,     /* it creates sockets and connects them to others; they can't listen */
};

/* needs: enum sandbox_needs, or'ed. A sandbox is to be closed after a failure, too. */
MUST_USE err_code sandbox_open(struct sandbox *s, unsigned needs, struct err *e);
void sandbox_close(struct sandbox *s);

/* Allows access to a path. One that doesn't exist or can't be opened is ignored: whoever needs it will fail as without
 * a sandbox. */
MUST_USE err_code sandbox_allow(struct sandbox *s, const char *path, enum sandbox_access access, struct err *e);

/* From here on the calling thread can do no more than was allowed. */
MUST_USE err_code sandbox_enter(struct sandbox *s, struct err *e);

#endif
