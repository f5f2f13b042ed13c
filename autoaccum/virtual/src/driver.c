/* libcuda: devices, contexts, plain memory, and modules compiled at run time, which are never run. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return vg_visible_devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = VG_CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = vg_visible_devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (vg_physical(ordinal) < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *out, int capacity, CUdevice ordinal)
{
    int device = vg_physical(ordinal);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(out, (size_t)capacity, "%s", vg_name(device));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(unsigned char out[16], CUdevice ordinal)
{
    int device = vg_physical(ordinal);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    vg_uuid(device, out);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice ordinal)
{
    int device = vg_physical(ordinal);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    *total = vg_total(device);
    return CUDA_SUCCESS;
}

enum { VIRTUAL_MEMORY_MANAGEMENT = 102, POSIX_FILE_HANDLES = 103, MULTICAST = 132 };

/* The numbers of the runtime's attributes are the driver's. */
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
    *value = attribute == VIRTUAL_MEMORY_MANAGEMENT;
    if (attribute == VIRTUAL_MEMORY_MANAGEMENT || attribute == POSIX_FILE_HANDLES || attribute == MULTICAST)
        return CUDA_SUCCESS;
    typedef int (*query)(int *, int, int);
    query runtime = (query)dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute");
    return runtime ? runtime(value, attribute, ordinal) : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = "error of the virtual GPU's driver";
    if (error == CUDA_SUCCESS)
        *text = "no error";
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        *text = "out of memory";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = "CUDA_ERROR_UNKNOWN";
    if (error == CUDA_SUCCESS)
        *name = "CUDA_SUCCESS";
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
    return CUDA_SUCCESS;
}

/* ---- contexts: one per device, a number that stands for its ordinal ---- */

#define FIRST_CONTEXT 0x100

static CUcontext context_of(int ordinal)
{
    return (CUcontext)(uintptr_t)(FIRST_CONTEXT + ordinal);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = vg_has_context(vg_current()) ? context_of(vg_current_ordinal) : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (context) {
        vg_current_ordinal = (int)((uintptr_t)context - FIRST_CONTEXT);
        vg_current_ready();
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    return cuCtxSetCurrent(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (context)
        *context = context_of(vg_current_ordinal);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    *ordinal = vg_current_ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    vg_wait_device(vg_current());
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    vg_make_context(vg_physical(ordinal));
    *context = context_of(ordinal);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    (void)ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    *flags = 0;
    *active = vg_has_context(vg_physical(ordinal));
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(void *stream, CUcontext *context)
{
    (void)stream;
    *context = context_of(vg_current_ordinal);
    return CUDA_SUCCESS;
}

/* ---- plain memory ---- */

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    int device = vg_current_ready();
    uint64_t all = vg_total(device), used = vg_used(device);
    *total = all;
    *free = used < all ? all - used : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    void *made;
    enum vg_result result = vg_device_alloc(vg_current(), size, &made);
    *pointer = (CUdeviceptr)made;
    if (result == VG_OK)
        return CUDA_SUCCESS;
    return result == VG_FULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    return vg_device_free((void *)pointer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    vg_block block;
    if (vg_blocks_find((void *)pointer, &block))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block.address;
    if (size)
        *size = block.size;
    return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, void *stream)
{
    (void)stream;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)pointer)[i] = value;
    return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(void *stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    (void)stream, (void)flags;
    *(volatile uint32_t *)address = value;
    return CUDA_SUCCESS;
}

enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE_POINTER = 3, POINTER_ORDINAL = 9 };

CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer)
{
    vg_block block;
    if (vg_blocks_find((void *)pointer, &block))
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)out = context_of(vg_ordinal(block.device));
        break;
    case POINTER_MEMORY_TYPE:
        *(unsigned *)out = block.kind == VG_HOST ? 1 : 2;
        break;
    case POINTER_DEVICE_POINTER:
        *(CUdeviceptr *)out = pointer;
        break;
    case POINTER_ORDINAL:
        *(int *)out = vg_ordinal(block.device);
        break;
    default:
        *(int *)out = 0;
    }
    return CUDA_SUCCESS;
}

/* ---- modules ---- */

CUresult cuModuleLoadData(void **module, const void *image)
{
    (void)image;
    *module = calloc(1, 16);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(void **module, const char *path)
{
    return cuModuleLoadData(module, path);
}

CUresult cuModuleUnload(void *module)
{
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)name;
    *function = module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)attribute, (void)function;
    *value = 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(void *function, int config)
{
    (void)function, (void)config;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_size,
                                                     size_t shared)
{
    (void)function, (void)shared;
    int fitting = block_size > 0 ? 2048 / block_size : 1;
    *blocks = fitting > 0 ? fitting : 1;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                        void **extra)
{
    (void)function, (void)shared, (void)arguments, (void)extra;
    uint64_t blocks = (uint64_t)grid_x * grid_y * grid_z;
    vg_launch(vg_stream_of(stream, vg_current_ready()), blocks * block_x * block_y * block_z);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(void *map)
{
    memset(map, 0, 128); /* CUtensorMap; what it would describe is never read */
    return CUDA_SUCCESS;
}

CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle)
{
    (void)callback, (void)data;
    if (handle)
        *handle = (void *)1;
    return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(void *handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}
