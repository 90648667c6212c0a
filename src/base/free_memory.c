#include "base/free_memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file_io.h"

enum { PATH_BYTES = 4096, FILE_BYTES = 16384 };

/* The beginning of a file, NUL-terminated, and empty where there is none. Allocates nothing, as it is read beside
 * decoding. */
static const char *read_text(const char *path, char text[FILE_BYTES])
{
    size_t n = 0;
    int fd = file_open(path, O_RDONLY, 0);
    for (ssize_t got; fd >= 0 && n < FILE_BYTES - 1 && (got = read(fd, text + n, FILE_BYTES - 1 - n)) > 0;)
        n += (size_t)got;
    if (fd >= 0)
        close(fd);
    text[n] = '\0';
    return text;
}

/* The number behind a key at the beginning of a line; key "": the text's first number. SIZE_MAX: there is none, or the
 * text says "max". */
static size_t find_number(const char *text, const char *key)
{
    size_t n_key = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        uint64_t v;
        if (!strncmp(line, key, n_key) && sscanf(line + n_key, "%" SCNu64, &v) == 1)
            return (size_t)v;
    }
    return SIZE_MAX;
}

/* What a control group calls its files: the two versions differ. */
struct group_names {
    const char *controller; /* in /proc/self/cgroup: "N:CONTROLLER:PATH" */
    const char *mount;
    const char *limits[2]; /* the lower one counts; "": there is one alone */
    const char *usage;
    const char *cache[2]; /* keys of memory.stat, with their children's */
};

static const struct group_names versions[] = {
    {"", "/sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", {"inactive_file ", "active_file "}},
    {"memory",
     "/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes", ""},
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

/* A file of a group, as read_text. */
static const char *read_of_group(const char *folder, const char *file, char text[FILE_BYTES])
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    text[0] = '\0';
    return n > 0 && (size_t)n < sizeof path ? read_text(path, text) : text;
}

/* What one group may have: above memory.high it is held up, and above memory.max ended. */
static size_t group_limit(const struct group_names *g, const char *folder)
{
    char text[FILE_BYTES];
    size_t limit = SIZE_MAX;
    for (int i = 0; i < 2 && *g->limits[i]; i++) {
        size_t n = find_number(read_of_group(folder, g->limits[i], text), "");
        limit = n < limit ? n : limit;
    }
    return limit;
}

/* What is left in one group. */
static size_t group_room(const struct group_names *g, const char *folder)
{
    char text[FILE_BYTES];
    size_t limit = group_limit(g, folder), cache = 0;
    size_t used = limit == SIZE_MAX ? SIZE_MAX : find_number(read_of_group(folder, g->usage, text), "");
    if (used == SIZE_MAX)
        return SIZE_MAX;
    read_of_group(folder, "memory.stat", text);
    for (int i = 0; i < 2; i++) {
        size_t n = find_number(text, g->cache[i]);
        cache += n == SIZE_MAX ? 0 : n;
    }
    used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

typedef size_t group_fn(const struct group_names *g, const char *folder);

/* The least that fn says of a group and those above it; path: the group's, below the mount. Where the mount shows a
 * part of the hierarchy only, as in a container, the path leads nowhere and the mount is the group itself. */
static size_t least_of_groups(const struct group_names *g, const char *root, const char *path, group_fn *fn)
{
    char folder[PATH_BYTES];
    int n_mount = snprintf(folder, sizeof folder, "%s%s", root, g->mount);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, g->mount, path);
    size_t least = SIZE_MAX;
    if (n_mount < 0 || n < 0 || (size_t)n >= sizeof folder)
        return SIZE_MAX;
    for (;;) {
        size_t bytes = fn(g, folder);
        least = bytes < least ? bytes : least;
        char *slash = strrchr(folder + n_mount, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* The least that fn says of the process's groups. */
static size_t least_of_all(const char *root, group_fn *fn)
{
    char path[PATH_BYTES], text[FILE_BYTES], *next;
    size_t least = SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    read_text(path, text);
    for (char *line = text; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = '\0';
        char *controller = strchr(line, ':'), *group = controller ? strchr(controller + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
            if (!strcmp(controller + 1, versions[i].controller)) {
                size_t bytes = least_of_groups(&versions[i], root, strcmp(group, "/") ? group : "", fn);
                least = bytes < least ? bytes : least;
            }
    }
    return least;
}

size_t free_memory_bytes(const char *root)
{
    char path[PATH_BYTES], text[FILE_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t kib = find_number(read_text(path, text), "MemAvailable:"), groups = least_of_all(root, group_room);
    size_t system = kib < SIZE_MAX / 1024 ? kib * 1024 : SIZE_MAX;
    return system < groups ? system : groups;
}

size_t free_memory_limit_bytes(const char *root)
{
    return least_of_all(root, group_limit);
}

size_t machine_memory_bytes(void)
{
    long n = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return n > 0 && page > 0 ? (size_t)n * (size_t)page : 0;
}

size_t resident_memory_bytes(void)
{
    char text[FILE_BYTES];
    size_t pages, resident;
    if (sscanf(read_text("/proc/self/statm", text), "%zu %zu", &pages, &resident) != 2)
        return 0;
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}
