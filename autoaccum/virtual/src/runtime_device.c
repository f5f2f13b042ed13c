/* libcudart: errors, versions, and what a device says about itself. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Fields that CUDA 13 dropped from cudaDeviceProp. */
#if VG_CUDA_VERSION < 13000
#define ONLY_CUDA_12(field) field;
#else
#define ONLY_CUDA_12(field)
#endif

typedef struct {
    char name[256];
    unsigned char uuid[16];
    char luid[8];
    unsigned luid_node_mask;
    size_t total_global_mem;
    size_t shared_mem_per_block;
    int regs_per_block;
    int warp_size;
    size_t mem_pitch;
    int max_threads_per_block;
    int max_threads_dim[3];
    int max_grid_size[3];
    ONLY_CUDA_12(int clock_rate)
    size_t total_const_mem;
    int major;
    int minor;
    size_t texture_alignment;
    size_t texture_pitch_alignment;
    ONLY_CUDA_12(int device_overlap)
    int multiprocessor_count;
    ONLY_CUDA_12(int kernel_exec_timeout)
    int integrated;
    int can_map_host_memory;
    ONLY_CUDA_12(int compute_mode)
    int max_texture_1d[2];
    ONLY_CUDA_12(int max_texture_1d_linear)
    int max_textures_and_surfaces[37];
    size_t surface_alignment;
    int concurrent_kernels;
    int ecc;
    int pci_bus;
    int pci_device;
    int pci_domain;
    int tcc_driver;
    int async_engine_count;
    int unified_addressing;
    ONLY_CUDA_12(int memory_clock_rate)
    int memory_bus_width;
    int l2_cache_size;
    int persisting_l2_cache_max_size;
    int max_threads_per_multiprocessor;
    int stream_priorities_supported;
    int global_l1_cache_supported;
    int local_l1_cache_supported;
    size_t shared_mem_per_multiprocessor;
    int regs_per_multiprocessor;
    int managed_memory;
    int is_multi_gpu_board;
    int multi_gpu_board_group;
    int host_native_atomic_supported;
    ONLY_CUDA_12(int single_to_double_ratio)
    int pageable_memory_access;
    int concurrent_managed_access;
    int compute_preemption_supported;
    int can_use_host_pointer_for_registered_mem;
    int cooperative_launch;
    ONLY_CUDA_12(int cooperative_multi_device_launch)
    size_t shared_mem_per_block_optin;
    int pageable_memory_uses_host_tables;
    int direct_managed_access_from_host;
    int max_blocks_per_multiprocessor;
    int access_policy_max_window;
    size_t reserved_shared_mem_per_block;
    int host_register_supported;
    int sparse_arrays_supported;
    int host_register_read_only_supported;
    int timeline_semaphores_supported;
    int memory_pools_supported;
    int gpu_direct_rdma[3];
    unsigned memory_pool_handle_types;
    int deferred_mapping_arrays_supported;
    int ipc_events_supported;
    int cluster_launch;
    int unified_function_pointers;
    int reserved[63];
} device_properties;

#if VG_CUDA_VERSION < 13000
_Static_assert(sizeof(device_properties) == 1032, "cudaDeviceProp of CUDA 12");
_Static_assert(offsetof(device_properties, unified_function_pointers) == 776, "cudaDeviceProp of CUDA 12");
#else
_Static_assert(sizeof(device_properties) == 1008, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(device_properties, unified_function_pointers) == 752, "cudaDeviceProp of CUDA 13");
#endif

/* ---- errors and versions ---- */

static __thread cudaError_t last_error;

cudaError_t vg_fail(cudaError_t error)
{
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

static const struct {
    cudaError_t error;
    const char *name;
    const char *text;
} known_errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorOperatingSystem, "cudaErrorOperatingSystem",
      "the host refused address space to the virtual GPU (see ulimit -v and vm.overcommit_memory)" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
      "peer access is already enabled" },
    { cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported by the virtual GPU" },
};
#define KNOWN_ERRORS (sizeof known_errors / sizeof *known_errors)

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < KNOWN_ERRORS; i++)
        if (known_errors[i].error == error)
            return known_errors[i].name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < KNOWN_ERRORS; i++)
        if (known_errors[i].error == error)
            return known_errors[i].text;
    return "unknown error of the virtual GPU";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = VG_CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = VG_CUDA_VERSION;
    return cudaSuccess;
}

/* ---- choosing a device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = vg_visible_devices();
    NEED_DEVICE();
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ordinal)
{
    NEED_DEVICE();
    *ordinal = vg_current_ordinal;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    NEED_DEVICE();
    if (vg_physical(ordinal) < 0)
        return vg_fail(cudaErrorInvalidDevice);
    vg_current_ordinal = ordinal;
    vg_current_ready();
    return cudaSuccess;
}

cudaError_t cudaChooseDevice(int *ordinal, const void *properties)
{
    (void)properties;
    *ordinal = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    NEED_DEVICE();
    vg_wait_device(vg_current_ready());
    return cudaSuccess;
}

/* ---- properties: the limits of an A100, whatever the name and the capability ---- */

static cudaError_t properties_of(device_properties *p, int ordinal)
{
    NEED_DEVICE();
    int device = vg_physical(ordinal);
    if (device < 0)
        return vg_fail(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", vg_name(device));
    vg_uuid(device, p->uuid);
    p->total_global_mem = vg_total(device);
    p->shared_mem_per_block = 49152;
    p->regs_per_block = 65536;
    p->warp_size = 32;
    p->mem_pitch = 2147483647;
    p->max_threads_per_block = 1024;
    p->max_threads_dim[0] = 1024;
    p->max_threads_dim[1] = 1024;
    p->max_threads_dim[2] = 64;
    p->max_grid_size[0] = 2147483647;
    p->max_grid_size[1] = 65535;
    p->max_grid_size[2] = 65535;
    p->total_const_mem = 65536;
    p->major = vg_capability(device) / 10;
    p->minor = vg_capability(device) % 10;
    p->texture_alignment = 512;
    p->texture_pitch_alignment = 32;
    p->multiprocessor_count = vg_multiprocessors(device);
    p->can_map_host_memory = 1;
    p->concurrent_kernels = 1;
    p->pci_bus = vg_pci_bus(device);
    p->async_engine_count = 3;
    p->unified_addressing = 1;
    p->memory_bus_width = 5120;
    p->l2_cache_size = 41943040;
    p->max_threads_per_multiprocessor = 2048;
    p->stream_priorities_supported = 1;
    p->global_l1_cache_supported = 1;
    p->local_l1_cache_supported = 1;
    p->shared_mem_per_multiprocessor = 167936;
    p->regs_per_multiprocessor = 65536;
    p->managed_memory = 1;
    p->concurrent_managed_access = 1;
    p->compute_preemption_supported = 1;
    p->can_use_host_pointer_for_registered_mem = 1;
    p->cooperative_launch = 1;
    p->shared_mem_per_block_optin = 166912;
    p->max_blocks_per_multiprocessor = 32;
    p->reserved_shared_mem_per_block = 1024;
    p->host_register_supported = 1;
    p->memory_pools_supported = 1;
    p->ipc_events_supported = 1;
    p->unified_function_pointers = 1;
    return cudaSuccess;
}

#if VG_CUDA_VERSION < 13000
cudaError_t cudaGetDeviceProperties_v2(device_properties *p, int ordinal)
#else
cudaError_t cudaGetDeviceProperties(device_properties *p, int ordinal)
#endif
{
    return properties_of(p, ordinal);
}

cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    device_properties p;
    cudaError_t error = properties_of(&p, ordinal);
    if (error)
        return error;
    const struct {
        int attribute;
        int value;
    } known[] = {
        { 1, p.max_threads_per_block },
        { 2, p.max_threads_dim[0] },
        { 3, p.max_threads_dim[1] },
        { 4, p.max_threads_dim[2] },
        { 5, p.max_grid_size[0] },
        { 6, p.max_grid_size[1] },
        { 7, p.max_grid_size[2] },
        { 8, (int)p.shared_mem_per_block },
        { 9, (int)p.total_const_mem },
        { 10, p.warp_size },
        { 11, (int)p.mem_pitch },
        { 12, p.regs_per_block },
        { 13, 1410000 }, /* clock, kHz */
        { 14, (int)p.texture_alignment },
        { 16, p.multiprocessor_count },
        { 19, p.can_map_host_memory },
        { 31, p.concurrent_kernels },
        { 33, p.pci_bus },
        { 36, 1215000 }, /* memory clock, kHz */
        { 37, p.memory_bus_width },
        { 38, p.l2_cache_size },
        { 39, p.max_threads_per_multiprocessor },
        { 40, p.async_engine_count },
        { 41, p.unified_addressing },
        { 75, p.major },
        { 76, p.minor },
        { 78, p.stream_priorities_supported },
        { 81, (int)p.shared_mem_per_multiprocessor },
        { 82, p.regs_per_multiprocessor },
        { 83, p.managed_memory },
        { 89, p.concurrent_managed_access },
        { 91, p.can_use_host_pointer_for_registered_mem },
        { 95, p.cooperative_launch },
        { 97, (int)p.shared_mem_per_block_optin },
        { 99, p.host_register_supported },
        { 106, p.max_blocks_per_multiprocessor },
        { 111, (int)p.reserved_shared_mem_per_block },
        { 115, p.memory_pools_supported },
    };
    *value = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute)
            *value = known[i].value;
    return cudaSuccess;
}

static void pci_text(int device, char out[32])
{
    snprintf(out, 32, "%08x:%02x:00.0", 0, vg_pci_bus(device));
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int capacity, int ordinal)
{
    int device = vg_physical(ordinal);
    if (device < 0)
        return vg_fail(cudaErrorInvalidDevice);
    char text[32];
    pci_text(device, text);
    snprintf(out, (size_t)capacity, "%s", text);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *ordinal, const char *wanted)
{
    for (int i = 0; i < vg_visible_devices(); i++) {
        char text[32];
        pci_text(vg_physical(i), text);
        if (!strcasecmp(text, wanted) || !strcasecmp(text + 4, wanted)) { /* a domain of 8 or of 4 digits */
            *ordinal = i;
            return cudaSuccess;
        }
    }
    return vg_fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int ordinal, int peer)
{
    *can = ordinal != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, int attribute, int source, int destination)
{
    (void)attribute, (void)source, (void)destination;
    *value = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *value, int limit)
{
    (void)limit;
    *value = 1 << 20;
    return cudaSuccess;
}
