/* libcudart: allocation, the stream-ordered pool, pinned memory, copies and device symbols. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST };

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    NEED_DEVICE();
    int device = vg_current_ready();
    uint64_t all = vg_total(device), used = vg_used(device);
    if (total)
        *total = all;
    if (free)
        *free = used < all ? all - used : 0;
    return cudaSuccess;
}

/* ---- plain allocation ---- */

cudaError_t cudaMalloc(void **pointer, size_t size)
{
    NEED_DEVICE();
    if (!pointer)
        return vg_fail(cudaErrorInvalidValue);
    *pointer = NULL;
    if (!size)
        return cudaSuccess;
    enum vg_result result = vg_device_alloc(vg_current_ready(), size, pointer);
    TRACE("cudaMalloc of %zu gives %p\n", size, *pointer);
    if (result == VG_OK)
        return cudaSuccess;
    return vg_fail(result == VG_FULL ? cudaErrorMemoryAllocation : cudaErrorOperatingSystem);
}

cudaError_t cudaFree(void *pointer)
{
    NEED_DEVICE();
    int device = vg_current_ready();
    if (!pointer)
        return cudaSuccess;
    vg_wait_device(device);
    TRACE("cudaFree of %p\n", pointer);
    return vg_device_free(pointer) ? vg_fail(cudaErrorInvalidValue) : cudaSuccess;
}

/* ---- the stream-ordered pool (PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync); it keeps nothing back ----
 */

enum { RELEASE_THRESHOLD = 4, RESERVED_NOW, RESERVED_HIGH, USED_NOW, USED_HIGH };
#define FIRST_POOL 0x1000

static uint64_t pool_used[VG_MAX_DEVICES];
static uint64_t pool_high[VG_MAX_DEVICES];

static int device_of_pool(void *pool)
{
    int device = vg_physical((int)((uintptr_t)pool - FIRST_POOL));
    return device < 0 ? 0 : device;
}

cudaError_t cudaDeviceGetDefaultMemPool(void **pool, int ordinal)
{
    *pool = (void *)(uintptr_t)(FIRST_POOL + ordinal);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(void **pool, int ordinal)
{
    return cudaDeviceGetDefaultMemPool(pool, ordinal);
}

cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream)
{
    (void)stream;
    cudaError_t error = cudaMalloc(pointer, size);
    if (error)
        return error;
    int device = vg_current();
    uint64_t rounded = (size + VG_PAGE - 1) & ~(VG_PAGE - 1);
    uint64_t used = __atomic_add_fetch(&pool_used[device], rounded, __ATOMIC_RELAXED);
    if (used > pool_high[device])
        pool_high[device] = used;
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    (void)stream;
    vg_block block;
    if (!pointer)
        return cudaSuccess;
    if (!vg_blocks_find(pointer, &block))
        __atomic_sub_fetch(&pool_used[block.device], block.charged, __ATOMIC_RELAXED);
    return vg_device_free(pointer) ? vg_fail(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    int device = device_of_pool(pool);
    switch (attribute) {
    case RESERVED_NOW:
    case USED_NOW:
        *(uint64_t *)value = pool_used[device];
        break;
    case RESERVED_HIGH:
    case USED_HIGH:
        *(uint64_t *)value = pool_high[device];
        break;
    case RELEASE_THRESHOLD:
        *(uint64_t *)value = 0;
        break;
    default:
        *(int *)value = 1; /* a reuse policy: allowed */
    }
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    (void)value;
    int device = device_of_pool(pool);
    if (attribute == RESERVED_HIGH || attribute == USED_HIGH)
        pool_high[device] = pool_used[device];
    return cudaSuccess;
}

cudaError_t cudaDeviceGetGraphMemAttribute(int ordinal, int attribute, void *value)
{
    (void)ordinal, (void)attribute;
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

/* ---- pinned and managed memory: the host's, and not charged to the device ---- */

static cudaError_t allocate_host(void **pointer, size_t size, enum vg_kind kind)
{
    *pointer = vg_host_alloc(size, kind, vg_current());
    return *pointer ? cudaSuccess : vg_fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags)
{
    (void)flags;
    return allocate_host(pointer, size, VG_HOST);
}

cudaError_t cudaMallocHost(void **pointer, size_t size)
{
    return allocate_host(pointer, size, VG_HOST);
}

cudaError_t cudaFreeHost(void *pointer)
{
    return vg_host_free(pointer) ? vg_fail(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned flags)
{
    (void)flags;
    return allocate_host(pointer, size, VG_MANAGED);
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
    (void)flags;
    vg_blocks_add(pointer, size, 0, vg_current(), VG_HOST);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *pointer)
{
    vg_blocks_remove(pointer, NULL);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *host_pointer, unsigned flags)
{
    (void)flags;
    *device_pointer = host_pointer;
    return cudaSuccess;
}

typedef struct {
    int type; /* 0 unknown, 1 host, 2 device, 3 managed */
    int ordinal;
    void *device_pointer;
    void *host_pointer;
#if VG_CUDA_VERSION >= 13000
    long reserved[8];
#endif
} pointer_attributes;

cudaError_t cudaPointerGetAttributes(pointer_attributes *out, const void *pointer)
{
    NEED_DEVICE();
    vg_block block;
    memset(out, 0, sizeof *out);
    if (vg_blocks_find(pointer, &block)) {
        out->ordinal = -1;
        out->host_pointer = (void *)pointer;
        return cudaSuccess;
    }
    out->type = block.kind;
    out->ordinal = vg_ordinal(block.device);
    out->device_pointer = (void *)pointer;
    if (block.kind != VG_DEVICE)
        out->host_pointer = (void *)pointer;
    return cudaSuccess;
}

/* ---- copies ---- */

static cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, int wait)
{
    NEED_DEVICE();
    vg_current_ready();
    vg_stream *queue = stream_here(stream);
    vg_transfer(queue, size);
    if (wait)
        vg_wait_until(queue->busy_until);
    if (!queue->capturing)
        vg_copy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    (void)kind;
    return copy(to, from, size, NULL, 1);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, cudaStream_t stream)
{
    vg_block block;
    int pageable = kind == DEVICE_TO_HOST && vg_blocks_find(to, &block); /* the real runtime waits here too */
    return copy(to, from, size, stream, pageable);
}

cudaError_t cudaMemcpyPeer(void *to, int to_ordinal, const void *from, int from_ordinal, size_t size)
{
    (void)to_ordinal, (void)from_ordinal;
    return copy(to, from, size, NULL, 1);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_ordinal, const void *from, int from_ordinal, size_t size,
                                cudaStream_t stream)
{
    (void)to_ordinal, (void)from_ordinal;
    return copy(to, from, size, stream, 0);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, int kind, cudaStream_t stream)
{
    for (size_t row = 0; row < height; row++) {
        char *line = (char *)to + row * to_pitch;
        cudaMemcpyAsync(line, (const char *)from + row * from_pitch, width, kind, stream);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                         size_t height, int kind)
{
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream)
{
    NEED_DEVICE();
    vg_current_ready();
    if (!stream_here(stream)->capturing)
        vg_set(pointer, value, size);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *pointer, int value, size_t size)
{
    return cudaMemsetAsync(pointer, value, size, NULL);
}

/* ---- __device__ variables: a host copy each ---- */

typedef struct {
    const void *symbol;
    size_t size;
    char *storage; /* made at first use */
} variable;

static variable *variables;
static size_t variables_count, variables_capacity;
static pthread_mutex_t variables_mutex = PTHREAD_MUTEX_INITIALIZER;

void __cudaRegisterVar(void **module, char *symbol, char *address, const char *name, int external,
                       size_t size, int constant, int global)
{
    (void)module, (void)address, (void)name, (void)external, (void)constant, (void)global;
    pthread_mutex_lock(&variables_mutex);
    if (variables_count == variables_capacity) {
        variables_capacity = variables_capacity ? 2 * variables_capacity : 256;
        variables = realloc(variables, variables_capacity * sizeof *variables);
        if (!variables)
            abort();
    }
    variables[variables_count++] = (variable){ symbol, size, NULL };
    pthread_mutex_unlock(&variables_mutex);
}

void __cudaRegisterManagedVar(void **module, void **symbol, char *address, const char *name, int external,
                              size_t size, int constant, int global)
{
    (void)module, (void)address, (void)name, (void)external, (void)constant, (void)global;
    *symbol = calloc(1, size + 64);
}

static char *storage_of(const void *symbol, size_t *size)
{
    char *found = NULL;
    pthread_mutex_lock(&variables_mutex);
    for (size_t i = 0; i < variables_count && !found; i++) {
        if (variables[i].symbol != symbol)
            continue;
        if (!variables[i].storage)
            variables[i].storage = calloc(1, variables[i].size + 64);
        found = variables[i].storage;
        *size = variables[i].size;
    }
    pthread_mutex_unlock(&variables_mutex);
    return found;
}

cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    size_t size;
    *pointer = storage_of(symbol, &size);
    return *pointer ? cudaSuccess : vg_fail(cudaErrorInvalidSymbol);
}

cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    return storage_of(symbol, size) ? cudaSuccess : vg_fail(cudaErrorInvalidSymbol);
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, int kind)
{
    (void)kind;
    size_t whole;
    char *storage = storage_of(symbol, &whole);
    if (storage)
        memcpy(storage + offset, from, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t size, size_t offset,
                                    int kind, cudaStream_t stream)
{
    (void)stream;
    return cudaMemcpyToSymbol(symbol, from, size, offset, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, int kind)
{
    (void)kind;
    size_t whole;
    char *storage = storage_of(symbol, &whole);
    if (storage)
        memcpy(to, storage + offset, size);
    return cudaSuccess;
}

/* ---- sharing device memory between processes is not offered ---- */

typedef struct {
    char bytes[64];
} ipc_handle;

cudaError_t cudaIpcGetMemHandle(ipc_handle *handle, void *pointer)
{
    (void)handle, (void)pointer;
    return vg_fail(cudaErrorNotSupported);
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, ipc_handle handle, unsigned flags)
{
    (void)pointer, (void)handle, (void)flags;
    return vg_fail(cudaErrorNotSupported);
}

cudaError_t cudaIpcGetEventHandle(ipc_handle *handle, void *event)
{
    (void)event;
    memset(handle, 0, sizeof *handle);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(void **event, ipc_handle handle)
{
    (void)event, (void)handle;
    return vg_fail(cudaErrorNotSupported);
}
