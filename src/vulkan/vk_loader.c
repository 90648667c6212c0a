#include "vulkan/vk_loader.h"

#include <dlfcn.h>
#include <string.h>

#include "base/mem.h"

/* The version of Vulkan that we use. */
enum { API_VERSION = VK_API_VERSION_1_2 };

const char *vk_result_text(VkResult result)
{
    switch (result) {
    case VK_SUCCESS: return "success";
    case VK_TIMEOUT: return "a timeout";
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED: return "initialization failed";
    case VK_ERROR_DEVICE_LOST: return "the device was lost";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "no driver";
    default: return "an error of the driver";
    }
}

/* Loads functions; false when one is missing. */
static bool load_global(struct vk_instance *i, PFN_vkGetInstanceProcAddr get)
{
#define FN(name)                                                                                                       \
    i->fn.name = (PFN_vk##name)get(NULL, "vk" #name);                                                                  \
    if (!i->fn.name)                                                                                                   \
        return false;
    VK_GLOBAL_FUNCTIONS(FN)
#undef FN
    return true;
}

static bool load_instance(struct vk_instance *i, PFN_vkGetInstanceProcAddr get)
{
#define FN(name)                                                                                                       \
    i->fn.name = (PFN_vk##name)get(i->instance, "vk" #name);                                                           \
    if (!i->fn.name)                                                                                                   \
        return false;
    VK_INSTANCE_FUNCTIONS(FN)
#undef FN
    i->fn.GetPhysicalDeviceCooperativeMatrixPropertiesKHR = (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)get(
        i->instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    return true;
}

err_code vk_load_device(struct vk_functions *fn, VkDevice device, struct err *e)
{
#define FN(name)                                                                                                       \
    fn->name = (PFN_vk##name)fn->GetDeviceProcAddr(device, "vk" #name);                                                \
    if (!fn->name)                                                                                                     \
        return err_set(e, ERR_UNSUPPORTED, "the Vulkan driver has no vk%s", #name);
    VK_DEVICE_FUNCTIONS(FN)
#undef FN
    return ERR_OK;
}

/* Whether the loader has an instance extension. */
static bool has_extension(const struct vk_functions *fn, const char *name)
{
    uint32_t n = 0;
    bool found = false;
    if (fn->EnumerateInstanceExtensionProperties(NULL, &n, NULL) != VK_SUCCESS)
        return false;
    VkExtensionProperties *all = mem_calloc(n, sizeof *all);
    if (all && fn->EnumerateInstanceExtensionProperties(NULL, &n, all) >= VK_SUCCESS)
        for (uint32_t i = 0; i < n; i++)
            found = found || !strcmp(all[i].extensionName, name);
    mem_free(all);
    return found;
}

/* Devices on which Vulkan is emulated (on Metal) are listed on request only. */
static VkResult create_instance(struct vk_instance *i)
{
    static const char *const portability = "VK_KHR_portability_enumeration";
    bool lists_all = has_extension(&i->fn, portability);
    const VkApplicationInfo app = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "moebius", .apiVersion = API_VERSION};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .flags = lists_all ? VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR : 0,
                                       .pApplicationInfo = &app,
                                       .enabledExtensionCount = lists_all,
                                       .ppEnabledExtensionNames = &portability};
    return i->fn.CreateInstance(&info, NULL, &i->instance);
}

static err_code open_instance(struct vk_instance *i, struct err *e)
{
    i->library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!i->library)
        return err_set(e, ERR_UNSUPPORTED, "there is no Vulkan loader (libvulkan.so.1)");
    PFN_vkGetInstanceProcAddr get;
    void *symbol = dlsym(i->library, "vkGetInstanceProcAddr");
    memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from objects to functions */
    uint32_t version = 0;
    if (!get || !load_global(i, get) || i->fn.EnumerateInstanceVersion(&version) != VK_SUCCESS || version < API_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "the Vulkan loader is older than version 1.2");
    VkResult result = create_instance(i);
    if (result != VK_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "Vulkan: %s", vk_result_text(result));
    return load_instance(i, get) ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "the Vulkan loader lacks functions");
}

err_code vk_instance_open(struct vk_instance *i, struct err *e)
{
    *i = (struct vk_instance){.env = vk_env_read()};
    err_code code = open_instance(i, e);
    if (code != ERR_OK)
        vk_instance_close(i);
    return code;
}

void vk_instance_close(struct vk_instance *i)
{
    if (i->instance)
        i->fn.DestroyInstance(i->instance, NULL);
    if (i->library)
        dlclose(i->library);
    *i = (struct vk_instance){0};
}
