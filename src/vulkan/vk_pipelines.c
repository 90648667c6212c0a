/* Shaders, which are compiled at build time and embedded, and the pipelines made of them. */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "vulkan/spirv_prune.h"
#include "vulkan/vk_internal.h"
#include "vulkan/vk_shader_code.h"

/* The SPIR-V of each shader. */
static const struct shader {
    const char *name;
    struct spirv {
        const uint32_t *code;
        size_t n_bytes;
    } plain, wide, dot;  /* wide: for devices with 64-bit integers; dot: and dot products of bytes; may be absent */
    struct spirv matrix; /* for devices with products of matrices, where plain has a model of these; may be absent */
} shaders[VK_N_SHADER] = {
#define SPIRV(code)                                                                                                    \
    {                                                                                                                  \
        code, sizeof code                                                                                              \
    }
#define SHADER(name_)      {.name = #name_, .plain = SPIRV(code_##name_)},
#define SHADER_WIDE(name_) {.name = #name_, .plain = SPIRV(code_##name_), .wide = SPIRV(code_wide_##name_)},
#if HAS_DOT
#define SHADER_DOT(name_)                                                                                              \
    {.name = #name_, .plain = SPIRV(code_##name_), .wide = SPIRV(code_wide_##name_), .dot = SPIRV(code_dot_##name_)},
#else
#define SHADER_DOT(name) SHADER_WIDE(name)
#endif
#if HAS_MATRIX
#define SHADER_MATRIX(name_) {.name = #name_, .plain = SPIRV(code_##name_), .matrix = SPIRV(code_matrix_##name_)},
#else
#define SHADER_MATRIX(name) SHADER(name)
#endif
#include "vulkan/vk_shaders.def"
#undef SHADER
#undef SHADER_WIDE
#undef SHADER_DOT
#undef SHADER_MATRIX
};

bool vk_has_matrix_shaders(void)
{
    return HAS_MATRIX;
}

/* Replaces the cache by one that begins with these bytes of a driver's. */
static VkResult open_cache(struct vk *v, const void *bytes, size_t n)
{
    const struct vk_functions *fn = &v->api.fn;
    const VkPipelineCacheCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = n, .pInitialData = bytes};
    VkPipelineCache cache;
    VkResult result = fn->CreatePipelineCache(v->device, &info, NULL, &cache);
    if (result != VK_SUCCESS)
        return result;
    if (v->pipelines.cache)
        fn->DestroyPipelineCache(v->device, v->pipelines.cache, NULL);
    v->pipelines.cache = cache;
    return VK_SUCCESS;
}

err_code vk_pipelines_open(struct vk *v, struct err *e)
{
    const VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, VK_PUSH_BYTES};
    const VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                             .setLayoutCount = 1,
                                             .pSetLayouts = &v->grids.layout,
                                             .pushConstantRangeCount = 1,
                                             .pPushConstantRanges = &push};
    VkResult result = v->api.fn.CreatePipelineLayout(v->device, &info, NULL, &v->pipelines.layout);
    if (result == VK_SUCCESS)
        result = open_cache(v, NULL, 0);
    return result == VK_SUCCESS ? ERR_OK
                                : err_set(e, ERR_UNSUPPORTED, "%s: shaders: %s", v->base.name, vk_result_text(result));
}

void vk_pipelines_close(struct vk *v)
{
    const struct vk_functions *fn = &v->api.fn;
    struct vk_pipelines *p = &v->pipelines;
    for (size_t i = 0; i < p->n; i++)
        fn->DestroyPipeline(v->device, p->all[i].pipeline, NULL);
    if (p->cache)
        fn->DestroyPipelineCache(v->device, p->cache, NULL);
    if (p->layout)
        fn->DestroyPipelineLayout(v->device, p->layout, NULL);
    mem_free(p->all);
}

/* Whether a shader uses the device's products of matrices, and not the model of them. */
static bool multiplies_matrices(const struct vk *v, const struct shader *s)
{
    return s->matrix.code && v->limits.matrix[0];
}

/* The shader's code, of which the program's constants select a part. */
static bool make_module(struct vk *v, const struct vk_program *p, VkShaderModule *m)
{
    const struct shader *s = &shaders[p->shader];
    const struct spirv *spirv = s->wide.code && v->limits.has_int64 ? &s->wide : &s->plain;
    if (spirv == &s->wide && s->dot.code && v->limits.has_dot)
        spirv = &s->dot;
    if (multiplies_matrices(v, s))
        spirv = &s->matrix;
    size_t n_words;
    uint32_t *pruned = spirv_prune(spirv->code, spirv->n_bytes / sizeof *spirv->code, p->constant, p->n, &n_words);
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = pruned ? n_words * sizeof *pruned : spirv->n_bytes,
                                           .pCode = pruned ? pruned : spirv->code};
    VkResult result = v->api.fn.CreateShaderModule(v->device, &info, NULL, m);
    mem_free(pruned);
    if (result != VK_SUCCESS)
        vk_fail(v, ERR_UNSUPPORTED, "the shader %s: %s", s->name, vk_result_text(result));
    return result == VK_SUCCESS;
}

/* Whether a dispatch of the shader may come in parts, as a driver's watchdog could take all of it for a hang: products,
 * whose workgroups don't ask how many others there are in z or, where that is one, in y. */
static bool may_be_long(enum vk_shader shader)
{
    return shader == VK_SHADER_matmul || shader == VK_SHADER_matmul_tile || shader == VK_SHADER_matmul_matrix ||
           shader == VK_SHADER_experts || shader == VK_SHADER_experts_tile || shader == VK_SHADER_experts_matrix ||
           shader == VK_SHADER_down;
}

static VkPipeline make_pipeline(struct vk *v, const struct vk_program *p)
{
    VkSpecializationMapEntry entries[VK_MAX_CONSTANT];
    VkPipeline pipeline = VK_NULL_HANDLE;
    VkShaderModule module;
    if (!make_module(v, p, &module))
        return VK_NULL_HANDLE;
    for (int i = 0; i < p->n; i++)
        entries[i] = (VkSpecializationMapEntry){(uint32_t)i, (uint32_t)i * 4, 4};
    const VkSpecializationInfo constants = {(uint32_t)p->n, entries, (size_t)p->n * 4, p->constant};
    const VkPipelineShaderStageCreateFlags stage_flags =
        multiplies_matrices(v, &shaders[p->shader]) ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0;
    const VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                              .flags =
                                                  may_be_long(p->shader) ? VK_PIPELINE_CREATE_DISPATCH_BASE_BIT : 0,
                                              .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                        .flags = stage_flags,
                                                        .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                        .module = module,
                                                        .pName = "main",
                                                        .pSpecializationInfo = &constants},
                                              .layout = v->pipelines.layout};
    VkResult result = v->api.fn.CreateComputePipelines(v->device, v->pipelines.cache, 1, &info, NULL, &pipeline);
    v->api.fn.DestroyShaderModule(v->device, module, NULL);
    if (result != VK_SUCCESS)
        vk_fail(v, ERR_UNSUPPORTED, "the shader %s: %s", shaders[p->shader].name, vk_result_text(result));
    return pipeline;
}

/* The pipeline of a program, which is created when it is first used. VK_NULL_HANDLE after an error, which is
 * remembered. */
static VkPipeline get_pipeline(struct vk *v, const struct vk_program *p)
{
    struct vk_pipelines *all = &v->pipelines;
    for (size_t i = 0; i < all->n; i++)
        if (all->all[i].program.shader == p->shader &&
            !memcmp(all->all[i].program.constant, p->constant, sizeof p->constant))
            return all->all[i].pipeline;
    if (mem_grow(&all->all, &all->room, all->n + 1, sizeof *all->all, "pipelines", NULL) != ERR_OK) {
        vk_fail(v, ERR_NOMEM, "no memory for pipelines");
        return VK_NULL_HANDLE;
    }
    VkPipeline pipeline = make_pipeline(v, p);
    if (pipeline)
        all->all[all->n++] = (struct vk_pipeline){*p, pipeline};
    return pipeline;
}

/* Binds the descriptors, once in each command buffer. */
static void bind_descriptors(struct vk *v, VkCommandBuffer c)
{
    if (v->pipelines.bound_serial == v->queue.serial)
        return;
    v->pipelines.bound_serial = v->queue.serial;
    v->api.fn.CmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, v->pipelines.layout, 0, 1, &v->grids.set, 0,
                                    NULL);
}

/* How many of n workgroups are a part of the dispatch. */
static uint32_t part_of(const struct vk *v, const struct vk_dispatch *d, uint32_t n)
{
    double part = (double)n * ((double)v->limits.work / (double)d->work);
    return !may_be_long(d->program.shader) || part >= n ? n : part > 1 ? (uint32_t)part : 1;
}

/* The parts of a dispatch need not wait for each other. When a new command buffer or stage begins between two of them,
 * the accesses are noted again. */
static void record_parts(struct vk *v, const struct vk_dispatch *d, struct vk_recorded_dispatch *call)
{
    bool by_z = d->z > 1;
    uint32_t n = by_z ? d->z : d->y, part = part_of(v, d, n), *first = by_z ? &call->z0 : &call->y0;
    uint64_t stage = 0;
    for (uint32_t done = 0; done < n; done += part) {
        uint32_t here = n - done < part ? n - done : part;
        VkCommandBuffer c = vk_record(v, (uint64_t)((double)d->work * here / n));
        if (!c)
            return;
        if (done == 0 || v->queue.stage != stage)
            vk_order(v, d->access, d->n_access);
        stage = v->queue.stage;
        bind_descriptors(v, c);
        *first = done;
        *(by_z ? &call->z : &call->y) = here;
        vk_record_dispatch(v, c, call);
        v->recorded.n_dispatch++;
    }
}

void vk_dispatch(struct vk *v, const struct vk_dispatch *d)
{
    struct vk_recorded_dispatch call = {.pipeline = get_pipeline(v, &d->program),
                                        .x = d->x,
                                        .y = d->y,
                                        .z = d->z,
                                        .push_bytes = (uint32_t)d->push_bytes};
    assert(d->push_bytes <= VK_PUSH_BYTES && d->push_bytes % 4 == 0);
    assert(d->x <= v->limits.n_workgroup_x && d->y <= v->limits.n_workgroup_y && d->z <= v->limits.n_workgroup_z);
    memcpy(call.push, d->push, d->push_bytes);
    if (call.pipeline)
        record_parts(v, d, &call);
}

/* ---- from run to run ------------------------------------------------------------------------------------------- */

/* Stands in front of the driver's own bytes. Drivers trust their input, so damaged bytes must not reach them. */
struct cache_header {
    char magic[8];
    uint8_t driver[VK_UUID_SIZE]; /* pipelineCacheUUID */
    uint32_t vendor, device;
    uint8_t choices[QUANT_MAX_ID]; /* those that were measured (struct vk_choices): runs compute the same */
    uint64_t n_bytes;              /* behind the header */
    uint32_t crc;                  /* CRC32C of those */
    uint32_t header_crc;
};

static struct cache_header cache_header(const struct vk *v, const uint8_t choices[QUANT_MAX_ID], const void *bytes,
                                        size_t n)
{
    struct cache_header h = {.magic = "moebvkp4", .n_bytes = n, .crc = crc32c(0, bytes, n)};
    for (int i = 0; i < QUANT_MAX_ID; i++)
        h.choices[i] = choices[i] & VK_MEASURED ? choices[i] : 0;
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    v->api.fn.GetPhysicalDeviceProperties2(v->physical, &p);
    memcpy(h.driver, p.properties.pipelineCacheUUID, sizeof h.driver);
    h.vendor = p.properties.vendorID;
    h.device = p.properties.deviceID;
    h.header_crc = crc32c(0, &h, offsetof(struct cache_header, header_crc));
    return h;
}

err_code vulkan_save_pipelines(struct backend *b, void **bytes, size_t *n, struct err *e)
{
    struct vk *v = vk_of(b);
    size_t n_data = 0;
    *bytes = NULL;
    *n = 0;
    if (v->pipelines.n == v->pipelines.n_cached || v->is_lost ||
        v->api.fn.GetPipelineCacheData(v->device, v->pipelines.cache, &n_data, NULL) != VK_SUCCESS)
        return ERR_OK;
    char *all = mem_calloc(1, sizeof(struct cache_header) + n_data);
    if (!all)
        return err_nomem(e, sizeof(struct cache_header) + n_data, "compiled shaders");
    char *data = all + sizeof(struct cache_header);
    VkResult result = v->api.fn.GetPipelineCacheData(v->device, v->pipelines.cache, &n_data, data);
    if (result != VK_SUCCESS) {
        mem_free(all);
        return err_set(e, ERR_FAIL, "%s: compiled shaders: %s", v->base.name, vk_result_text(result));
    }
    const struct cache_header h = cache_header(v, v->choices.of, data, n_data);
    memcpy(all, &h, sizeof h);
    v->pipelines.n_cached = v->pipelines.n;
    *bytes = all;
    *n = sizeof h + n_data;
    return ERR_OK;
}

bool vulkan_use_pipelines(struct backend *b, const void *bytes, size_t n)
{
    struct vk *v = vk_of(b);
    if (n < sizeof(struct cache_header))
        return false;
    const char *data = (const char *)bytes + sizeof(struct cache_header);
    struct cache_header got;
    memcpy(&got, bytes, sizeof got);
    const struct cache_header want = cache_header(v, got.choices, data, n - sizeof want);
    if (memcmp(&got, &want, sizeof want) != 0 || open_cache(v, data, n - sizeof want) != VK_SUCCESS)
        return false;
    vk_recall_choices(v, got.choices);
    return true;
}

void vulkan_cache_name(struct backend *b, char name[VULKAN_CACHE_NAME_BYTES])
{
    static const uint8_t none[QUANT_MAX_ID];
    const struct cache_header h = cache_header(vk_of(b), none, "", 0);
    snprintf(name, VULKAN_CACHE_NAME_BYTES, "vulkan-%08" PRIx32 ".bin", h.header_crc);
}
