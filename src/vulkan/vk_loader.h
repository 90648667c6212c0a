/* The Vulkan loader, opened at run time, and the functions that this room calls. */
#ifndef VULKAN_VK_LOADER_H
#define VULKAN_VK_LOADER_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h> /* <vulkan/vulkan.h> would be the door of this room */

#include "base/err.h"

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
    FN(GetSemaphoreCounterValue)                                                                                       \
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
};

/* An instance of the API and its functions; those of devices come with vk_load_device. */
struct vk_instance {
    void *library;
    VkInstance instance;
    struct vk_functions fn;
};

/* ERR_UNSUPPORTED where there is no loader, or none new enough. vk_instance_close accepts half-open ones. */
MUST_USE err_code vk_instance_open(struct vk_instance *i, struct err *e);
void vk_instance_close(struct vk_instance *i);

/* Finds the functions of a device. */
MUST_USE err_code vk_load_device(struct vk_functions *fn, VkDevice device, struct err *e);

/* A result of the API in words: "out of device memory". */
const char *vk_result_text(VkResult result);

#endif
