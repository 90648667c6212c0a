/* The codebooks of the IQ1, IQ2 and IQ3 types in the device's memory (shaders/grids.glsl), and the descriptors through
 * which shaders reach them and the counters. */
#include <string.h>

#include "quant/quant_grids.h"
#include "vulkan/vk_internal.h"

/* In the order of shaders/grids.glsl. */
static const struct {
    const uint16_t *entries;
    size_t n;
} codebooks[] = {
    {quant_grid_iq1, 2048},   {quant_grid_iq2_xxs, 256}, {quant_grid_iq2_xs, 512},
    {quant_grid_iq2_s, 1024}, {quant_grid_iq3_xxs, 256}, {quant_grid_iq3_s, 512},
};
enum { N_CODEBOOK = sizeof codebooks / sizeof *codebooks, N_ENTRY = 2048 + 256 + 512 + 1024 + 256 + 512 };

static err_code upload(struct vk *v, struct err *e)
{
    uint16_t all[N_ENTRY];
    size_t n = 0;
    for (int i = 0; i < N_CODEBOOK; n += codebooks[i++].n)
        memcpy(all + n, codebooks[i].entries, codebooks[i].n * sizeof *all);
    TRY(vk_piece_take(v, VK_FOR_DEVICE, sizeof all, "codebooks", &v->grids.piece, e));
    return vk_upload(v, &v->grids.piece, 0, all, sizeof all, e);
}

static VkResult open_set(struct vk *v)
{
    const struct vk_functions *fn = &v->api.fn;
    struct vk_grids *g = &v->grids;
    VkDescriptorSetLayoutBinding bindings[VK_N_BINDING];
    for (uint32_t i = 0; i < VK_N_BINDING; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){.binding = i,
                                                     .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                     .descriptorCount = 1,
                                                     .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    const VkDescriptorSetLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                    .bindingCount = VK_N_BINDING,
                                                    .pBindings = bindings};
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, VK_N_BINDING};
    const VkDescriptorPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size};
    VkResult result = fn->CreateDescriptorSetLayout(v->device, &layout, NULL, &g->layout);
    if (result == VK_SUCCESS)
        result = fn->CreateDescriptorPool(v->device, &pool, NULL, &g->pool);
    if (result != VK_SUCCESS)
        return result;
    const VkDescriptorSetAllocateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                             .descriptorPool = g->pool,
                                             .descriptorSetCount = 1,
                                             .pSetLayouts = &g->layout};
    return fn->AllocateDescriptorSets(v->device, &set, &g->set);
}

void vk_bind_piece(struct vk *v, uint32_t binding, const struct vk_piece *p)
{
    const VkDescriptorBufferInfo buffer = {p->block->buffer, p->off, p->n_bytes};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .dstSet = v->grids.set,
                                        .dstBinding = binding,
                                        .descriptorCount = 1,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                        .pBufferInfo = &buffer};
    v->api.fn.UpdateDescriptorSets(v->device, 1, &write, 0, NULL);
}

err_code vk_grids_open(struct vk *v, struct err *e)
{
    VkResult result = open_set(v);
    if (result != VK_SUCCESS)
        return err_set(e, ERR_UNSUPPORTED, "%s: descriptors: %s", v->base.name, vk_result_text(result));
    TRY(upload(v, e));
    vk_bind_piece(v, VK_BINDING_GRIDS, &v->grids.piece);
    return ERR_OK;
}

void vk_grids_close(struct vk *v)
{
    struct vk_grids *g = &v->grids;
    if (g->pool)
        v->api.fn.DestroyDescriptorPool(v->device, g->pool, NULL);
    if (g->layout)
        v->api.fn.DestroyDescriptorSetLayout(v->device, g->layout, NULL);
    vk_piece_give(v, &g->piece);
}
