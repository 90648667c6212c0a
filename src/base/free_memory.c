#include "base/free_memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 512 };

/* The number behind a key at the beginning of a line of a file; key "": the file's first number. SIZE_MAX: there is
 * none, or the file says "max". */
static size_t read_number(const char *path, const char *key)
{
    char line[LINE_BYTES];
    size_t n = SIZE_MAX, n_key = strlen(key);
    FILE *f = fopen(path, "re");
    while (f && n == SIZE_MAX && fgets(line, sizeof line, f)) {
        uint64_t v;
        if (!strncmp(line, key, n_key) && sscanf(line + n_key, "%" SCNu64, &v) == 1)
            n = (size_t)v;
    }
    if (f)
        fclose(f);
    return n;
}

/* What a control group calls its files: the two versions differ. */
struct group_names {
    const char *controller; /* in /proc/self/cgroup: "N:CONTROLLER:PATH" */
    const char *mount;
    const char *limit, *usage;
    const char *cache[2]; /* keys of memory.stat, with their children's */
};

static const struct group_names versions[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"memory",
     "/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

static size_t read_of_group(const char *folder, const char *file, const char *key)
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    return n > 0 && (size_t)n < sizeof path ? read_number(path, key) : SIZE_MAX;
}

/* What is left in one group. */
static size_t group_room(const struct group_names *g, const char *folder)
{
    size_t limit = read_of_group(folder, g->limit, ""), used = read_of_group(folder, g->usage, ""), cache = 0;
    if (limit == SIZE_MAX || used == SIZE_MAX)
        return SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        size_t n = read_of_group(folder, "memory.stat", g->cache[i]);
        cache += n == SIZE_MAX ? 0 : n;
    }
    used -= cache < used ? cache : used;
    return used < limit ? limit - used : 0;
}

/* The least that is left in a group and those above it; path: the group's, below the mount. Where the mount shows a
 * part of the hierarchy only, as in a container, the path leads nowhere and the mount is the group itself. */
static size_t groups_room(const struct group_names *g, const char *root, const char *path)
{
    char folder[PATH_BYTES];
    int n_mount = snprintf(folder, sizeof folder, "%s%s", root, g->mount);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, g->mount, path);
    size_t least = SIZE_MAX;
    if (n_mount < 0 || n < 0 || (size_t)n >= sizeof folder)
        return SIZE_MAX;
    for (;;) {
        size_t room = group_room(g, folder);
        least = room < least ? room : least;
        char *slash = strrchr(folder + n_mount, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

size_t free_memory_bytes(const char *root)
{
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t kib = read_number(path, "MemAvailable:"), least = kib < SIZE_MAX / 1024 ? kib * 1024 : SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *controller = strchr(line, ':'), *group = controller ? strchr(controller + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
            if (!strcmp(controller + 1, versions[i].controller)) {
                size_t room = groups_room(&versions[i], root, strcmp(group, "/") ? group : "");
                least = room < least ? room : least;
            }
    }
    if (f)
        fclose(f);
    return least;
}
