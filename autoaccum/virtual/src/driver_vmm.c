/* libcuda: virtual memory management, on which PyTorch's expandable segments stand.
   A physical handle is a charge to the account; a mapping is address space of the host. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    int type;
    int requested_handles;
    int location_type; /* 1: a device */
    int location_id;   /* its ordinal */
    char rest[16];
} allocation_properties;
_Static_assert(sizeof(allocation_properties) == 32, "CUmemAllocationProp");

typedef struct {
    size_t size;
    int device;
    int references; /* the handle itself, and each mapping of it */
    allocation_properties properties;
} physical;

typedef struct mapping {
    uintptr_t address;
    size_t size;
    physical *memory;
    struct mapping *next;
} mapping;

static mapping *mappings;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void drop_locked(physical *memory)
{
    if (--memory->references > 0)
        return;
    vg_release(memory->device, memory->size);
    free(memory);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const allocation_properties *properties,
                                       int option)
{
    (void)properties, (void)option;
    *granularity = VG_PAGE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    void *reserved = vg_map_aligned(size, PROT_NONE);
    if (!reserved)
        return CUDA_ERROR_OPERATING_SYSTEM;
    vg_blocks_add(reserved, size, 0, vg_current(), VG_DEVICE);
    *pointer = (CUdeviceptr)reserved;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    vg_blocks_remove((void *)pointer, NULL);
    munmap((void *)pointer, size);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(physical **handle, size_t size, const allocation_properties *properties,
                     unsigned long long flags)
{
    (void)flags;
    int device = properties->location_type == 1 ? vg_physical(properties->location_id) : vg_current();
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    vg_make_context(device);
    if (vg_charge(device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical *memory = calloc(1, sizeof *memory);
    if (!memory)
        abort();
    memory->size = size;
    memory->device = device;
    memory->references = 1;
    memory->properties = *properties;
    *handle = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(physical *memory)
{
    pthread_mutex_lock(&mutex);
    drop_locked(memory);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static int remap(uintptr_t address, size_t size, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap((void *)address, size, protection, flags, -1, 0) == MAP_FAILED ? -1 : 0;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, physical *memory, unsigned long long flags)
{
    (void)offset, (void)flags;
    mapping *made = calloc(1, sizeof *made);
    if (!made || remap(pointer, size, PROT_READ | PROT_WRITE)) {
        free(made);
        return CUDA_ERROR_INVALID_VALUE;
    }
    madvise((void *)pointer, size, MADV_NOHUGEPAGE);
    made->address = pointer;
    made->size = size;
    made->memory = memory;
    pthread_mutex_lock(&mutex);
    memory->references++;
    made->next = mappings;
    mappings = made;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    remap(pointer, size, PROT_NONE);
    pthread_mutex_lock(&mutex);
    for (mapping **link = &mappings; *link;) {
        mapping *m = *link;
        if (m->address < pointer || m->address >= pointer + size) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        drop_locked(m->memory);
        free(m);
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const void *access, size_t count)
{
    (void)pointer, (void)size, (void)access, (void)count;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(physical **handle, void *pointer)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = (uintptr_t)pointer;
    pthread_mutex_lock(&mutex);
    for (mapping *m = mappings; m && result; m = m->next) {
        if (address < m->address || address >= m->address + m->size)
            continue;
        m->memory->references++;
        *handle = m->memory;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(allocation_properties *properties, physical *memory)
{
    *properties = memory->properties;
    return CUDA_SUCCESS;
}
