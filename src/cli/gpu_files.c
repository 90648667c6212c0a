#include "cli/gpu_files.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The device files of GPU drivers; of NVIDIA's the first one. */
static const char *const devices[] = {"/dev/dri",       "/dev/kfd",        "/dev/dxg",
                                      "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"};
enum { N_DEVICE = sizeof devices / sizeof *devices };

const char *gpu_files_default(void)
{
    const char *asked = getenv("MOEBIUS_GPU");
    bool any = getenv("MOEBIUS_VULKAN_KIND"); /* in tests other devices count as GPUs */
    for (int i = 0; i < N_DEVICE; i++)
        any = any || access(devices[i], F_OK) == 0;
    if (!asked || !*asked)
        return any ? "auto" : NULL;
    return strcmp(asked, "none") != 0 ? asked : NULL;
}

static err_code allow_devices(struct sandbox *s, struct err *e)
{
    enum { N_NVIDIA = 16 };
    char path[32];
    for (int i = 0; i < N_DEVICE; i++)
        TRY(sandbox_allow(s, devices[i], SANDBOX_DEVICES, e));
    for (int i = 0; i < N_NVIDIA; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        TRY(sandbox_allow(s, path, SANDBOX_DEVICES, e));
    }
    return ERR_OK;
}

/* ---- drivers ----------------------------------------------------------------------------------------------------- */

/* The folder that `path` is in. */
static err_code allow_place_of(struct sandbox *s, const char *path, struct err *e)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return sandbox_allow(s, folder, SANDBOX_READ, e);
}

/* Allows a manifest, and the folder of the library that it names by an absolute path or one relative to the manifest; a
 * bare name is found where all libraries are. */
static err_code allow_manifest(struct sandbox *s, const char *path, struct err *e)
{
    char library[PATH_MAX];
    const char *slash = strrchr(path, '/');
    json_t *manifest = json_load_file(path, 0, NULL);
    const char *name = json_string_value(json_object_get(json_object_get(manifest, "ICD"), "library_path"));
    err_code code = allow_place_of(s, path, e);
    if (code == ERR_OK && name && strchr(name, '/') &&
        (size_t)snprintf(library, sizeof library, "%.*s%s", name[0] != '/' && slash ? (int)(slash - path) + 1 : 0, path,
                         name) < sizeof library)
        code = allow_place_of(s, library, e);
    json_decref(manifest);
    return code;
}

/* Allows the manifests in a folder, or a single manifest. */
static err_code allow_manifests(struct sandbox *s, const char *path, struct err *e)
{
    char file[PATH_MAX];
    DIR *folder = opendir(path);
    err_code code = folder ? sandbox_allow(s, path, SANDBOX_READ, e) : allow_manifest(s, path, e);
    for (const struct dirent *entry; code == ERR_OK && folder && (entry = readdir(folder));)
        if (strstr(entry->d_name, ".json") &&
            (size_t)snprintf(file, sizeof file, "%s/%s", path, entry->d_name) < sizeof file)
            code = allow_manifest(s, file, e);
    if (folder)
        closedir(folder);
    return code;
}

/* Allows the manifests of a list of paths, to each of which `below` is appended. */
static err_code allow_list(struct sandbox *s, const char *list, const char *below, struct err *e)
{
    char path[PATH_MAX];
    for (size_t n; list && *list; list += n + (list[n] == ':')) {
        n = strcspn(list, ":");
        if (n && (size_t)snprintf(path, sizeof path, "%.*s%s", (int)n, list, below) < sizeof path)
            TRY(allow_manifests(s, path, e));
    }
    return ERR_OK;
}

/* Allows the manifests in the folder that a variable names or, if it is not set, in the default folder in the home
 * folder. */
static err_code allow_home(struct sandbox *s, const char *variable, const char *standard, struct err *e)
{
    char path[PATH_MAX];
    const char *named = getenv(variable), *home = getenv("HOME");
    if (named && *named)
        return allow_list(s, named, "/vulkan/icd.d", e);
    return home && (size_t)snprintf(path, sizeof path, "%s/%s", home, standard) < sizeof path
               ? allow_list(s, path, "/vulkan/icd.d", e)
               : ERR_OK;
}

/* The order and the names are those of the loader's documentation (LoaderDriverInterface.md, "Linux Driver
 * Discovery"). */
static err_code allow_drivers(struct sandbox *s, struct err *e)
{
    static const char *const named[] = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH",
                                        "VK_ADD_LAYER_PATH"};
    static const char *const places[] = {"/etc", "/etc/xdg", "/usr/share", "/usr/local/share",
                                         "/run/opengl-driver/share"};
    static const char *const lists[] = {"XDG_CONFIG_DIRS", "XDG_DATA_DIRS"};
    TRY(sandbox_allow(s, "/etc/vulkan", SANDBOX_READ, e));
    TRY(allow_list(s, getenv("LD_LIBRARY_PATH"), "", e)); /* folders, for libraries that are named without one */
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        TRY(allow_list(s, getenv(named[i]), "", e));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        TRY(allow_list(s, places[i], "/vulkan/icd.d", e));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        TRY(allow_list(s, getenv(lists[i]), "/vulkan/icd.d", e));
    TRY(allow_home(s, "XDG_CONFIG_HOME", ".config", e));
    return allow_home(s, "XDG_DATA_HOME", ".local/share", e);
}

err_code gpu_files_allow(struct sandbox *s, struct err *e)
{
    TRY(allow_devices(s, e));
    return allow_drivers(s, e);
}
