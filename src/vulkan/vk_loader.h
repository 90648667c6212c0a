/* The Vulkan loader, opened at run time, and the functions that this room calls. */
#ifndef VULKAN_VK_LOADER_H
#define VULKAN_VK_LOADER_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h> /* <vulkan/vulkan.h> would be the door of this room */

#include "base/err.h"
#include "vulkan/vk_env.h"

/* As the API's registry has it; headers before 1.3.255 lack it. */
#ifndef VK_KHR_cooperative_matrix
#define VK_KHR_cooperative_matrix                                         1
#define VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME                          "VK_KHR_cooperative_matrix"
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR ((VkStructureType)1000506000)
#define VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR               ((VkStructureType)1000506001)
enum { VK_COMPONENT_TYPE_SINT8_KHR = 3, VK_COMPONENT_TYPE_SINT32_KHR = 5, VK_SCOPE_SUBGROUP_KHR = 3 };
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType sType;
    void *pNext;
    uint32_t MSize, NSize, KSize;
    int32_t AType, BType, CType, ResultType;
    VkBool32 saturatingAccumulation;
    int32_t scope;
} VkCooperativeMatrixPropertiesKHR;
typedef VkResult(VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(
    VkPhysicalDevice device, uint32_t *n, VkCooperativeMatrixPropertiesKHR *all);
#endif

/* FN(name) of functions that the loader has without an instance, that an instance has, and that a device has. */
#define VK_GLOBAL_FUNCTIONS(FN) FN(EnumerateInstanceVersion) FN(EnumerateInstanceExtensionProperties) FN(CreateInstance)
#define VK_INSTANCE_FUNCTIONS(FN)                                                                                      \
    FN(DestroyInstance)                                                                                                \
    FN(EnumeratePhysicalDevices)                                                                                       \
    FN(GetPhysicalDeviceProperties2)                                                                                   \
    FN(GetPhysicalDeviceFeatures2)                                                                                     \
    FN(GetPhysicalDeviceMemoryProperties2)                                                                             \
    FN(GetPhysicalDeviceQueueFamilyProperties)                                                                         \
    FN(EnumerateDeviceExtensionProperties)                                                                             \
    FN(CreateDevice)                                                                                                   \
    FN(GetDeviceProcAddr)
#define VK_DEVICE_FUNCTIONS(FN)                                                                                        \
    FN(DestroyDevice)                                                                                                  \
    FN(DeviceWaitIdle)                                                                                                 \
    FN(GetDeviceQueue)                                                                                                 \
    FN(QueueSubmit)                                                                                                    \
    FN(CreateCommandPool)                                                                                              \
    FN(DestroyCommandPool)                                                                                             \
    FN(AllocateCommandBuffers)                                                                                         \
    FN(BeginCommandBuffer)                                                                                             \
    FN(EndCommandBuffer)                                                                                               \
    FN(CreateSemaphore)                                                                                                \
    FN(DestroySemaphore)                                                                                               \
    FN(WaitSemaphores)                                                                                                 \
    FN(AllocateMemory)                                                                                                 \
    FN(FreeMemory)                                                                                                     \
    FN(MapMemory)                                                                                                      \
    FN(CreateBuffer)                                                                                                   \
    FN(DestroyBuffer)                                                                                                  \
    FN(GetBufferMemoryRequirements)                                                                                    \
    FN(BindBufferMemory)                                                                                               \
    FN(GetBufferDeviceAddress)                                                                                         \
    FN(CreateShaderModule)                                                                                             \
    FN(DestroyShaderModule)                                                                                            \
    FN(CreateDescriptorSetLayout)                                                                                      \
    FN(DestroyDescriptorSetLayout)                                                                                     \
    FN(CreateDescriptorPool)                                                                                           \
    FN(DestroyDescriptorPool)                                                                                          \
    FN(AllocateDescriptorSets)                                                                                         \
    FN(UpdateDescriptorSets)                                                                                           \
    FN(CreatePipelineLayout)                                                                                           \
    FN(DestroyPipelineLayout)                                                                                          \
    FN(CreatePipelineCache)                                                                                            \
    FN(DestroyPipelineCache)                                                                                           \
    FN(GetPipelineCacheData)                                                                                           \
    FN(CreateComputePipelines)                                                                                         \
    FN(DestroyPipeline)                                                                                                \
    FN(CmdPipelineBarrier)                                                                                             \
    FN(CmdBindPipeline)                                                                                                \
    FN(CmdBindDescriptorSets)                                                                                          \
    FN(CmdPushConstants)                                                                                               \
    FN(CmdDispatch)                                                                                                    \
    FN(CmdDispatchBase)                                                                                                \
    FN(CmdCopyBuffer)                                                                                                  \
    FN(CmdFillBuffer)                                                                                                  \
    FN(CmdUpdateBuffer)                                                                                                \
    FN(CreateQueryPool)                                                                                                \
    FN(DestroyQueryPool)                                                                                               \
    FN(GetQueryPoolResults)                                                                                            \
    FN(CmdResetQueryPool)                                                                                              \
    FN(CmdWriteTimestamp)

struct vk_functions {
#define FN(name) PFN_vk##name name;
    VK_GLOBAL_FUNCTIONS(FN)
    VK_INSTANCE_FUNCTIONS(FN)
    VK_DEVICE_FUNCTIONS(FN)
#undef FN
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR GetPhysicalDeviceCooperativeMatrixPropertiesKHR; /* or NULL */
};

/* An instance of the API and its functions; those of devices come with vk_load_device. */
struct vk_instance {
    void *library;
    VkInstance instance;
    struct vk_functions fn;
    struct vk_env env;
};

/* ERR_UNSUPPORTED where there is no loader, or none new enough. vk_instance_close accepts half-open ones. */
MUST_USE err_code vk_instance_open(struct vk_instance *i, struct err *e);
void vk_instance_close(struct vk_instance *i);

/* Finds the functions of a device. */
MUST_USE err_code vk_load_device(struct vk_functions *fn, VkDevice device, struct err *e);

/* A result of the API in words: "out of device memory". */
const char *vk_result_text(VkResult result);

#endif
