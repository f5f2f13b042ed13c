/* Device memory without a device: address space of the host, charged to the account but hardly ever touched.
 */
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HOST_PAGE ((size_t)4096)
#define SMALL_READ ((size_t)16) /* a scalar or a count read back by the host */

/* Copies within the device up to this size move something: the memory of the host should stay untouched. */
#define BIG_COPY ((size_t)1 << 20)

/* ---- the blocks, sorted by address ---- */

static pthread_mutex_t blocks_mutex = PTHREAD_MUTEX_INITIALIZER;
static vg_block *blocks;
static size_t blocks_count;
static size_t blocks_capacity;

/* Give the index of the first block that starts after `address`. */
static size_t first_after(uintptr_t address)
{
    size_t low = 0, high = blocks_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void vg_blocks_add(void *pointer, size_t size, size_t charged, int device, enum vg_kind kind)
{
    pthread_mutex_lock(&blocks_mutex);
    if (blocks_count == blocks_capacity) {
        blocks_capacity = blocks_capacity ? 2 * blocks_capacity : 1024;
        blocks = realloc(blocks, blocks_capacity * sizeof *blocks);
        if (!blocks)
            abort();
    }
    size_t i = first_after((uintptr_t)pointer);
    memmove(blocks + i + 1, blocks + i, (blocks_count - i) * sizeof *blocks);
    blocks[i] = (vg_block){ (uintptr_t)pointer, size, charged, device, kind };
    blocks_count++;
    pthread_mutex_unlock(&blocks_mutex);
}

int vg_blocks_remove(const void *pointer, vg_block *out)
{
    int result = -1;
    pthread_mutex_lock(&blocks_mutex);
    size_t i = first_after((uintptr_t)pointer);
    if (i && blocks[i - 1].address == (uintptr_t)pointer) {
        if (out)
            *out = blocks[i - 1];
        memmove(blocks + i - 1, blocks + i, (blocks_count - i) * sizeof *blocks);
        blocks_count--;
        result = 0;
    }
    pthread_mutex_unlock(&blocks_mutex);
    return result;
}

int vg_blocks_find(const void *pointer, vg_block *out)
{
    int result = -1;
    pthread_mutex_lock(&blocks_mutex);
    size_t i = first_after((uintptr_t)pointer);
    if (i && (uintptr_t)pointer < blocks[i - 1].address + blocks[i - 1].size) {
        *out = blocks[i - 1];
        result = 0;
    }
    pthread_mutex_unlock(&blocks_mutex);
    return result;
}

/* ---- allocation ---- */

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) & ~(unit - 1);
}

static void *map(size_t size, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *pointer = mmap(NULL, size, protection, flags, -1, 0);
    return pointer == MAP_FAILED ? NULL : pointer;
}

void *vg_map_aligned(size_t size, int protection)
{
    char *raw = map(size + VG_PAGE, protection);
    if (!raw)
        return NULL;
    char *aligned = (char *)round_up((uintptr_t)raw, VG_PAGE);
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    munmap(aligned + size, (size_t)(raw + VG_PAGE - aligned));
    madvise(aligned, size, MADV_NOHUGEPAGE); /* a touched scalar costs 4 KiB of the host, not 2 MiB */
    return aligned;
}

enum vg_result vg_device_alloc(int device, size_t size, void **out)
{
    *out = NULL;
    vg_make_context(device);
    size_t rounded = round_up(size, VG_PAGE);
    if (rounded < size || vg_charge(device, rounded))
        return VG_FULL;
    *out = vg_map_aligned(rounded, PROT_READ | PROT_WRITE);
    if (!*out) {
        vg_release(device, rounded);
        return VG_REFUSED;
    }
    vg_blocks_add(*out, rounded, rounded, device, VG_DEVICE);
    return VG_OK;
}

int vg_device_free(void *pointer)
{
    vg_block block;
    if (!pointer)
        return 0;
    if (vg_blocks_remove(pointer, &block))
        return -1;
    munmap(pointer, block.size);
    if (block.kind == VG_DEVICE)
        vg_release(block.device, block.charged);
    return 0;
}

void *vg_host_alloc(size_t size, enum vg_kind kind, int device)
{
    size_t rounded = round_up(size ? size : 1, HOST_PAGE);
    void *pointer = map(rounded, PROT_READ | PROT_WRITE);
    if (pointer)
        vg_blocks_add(pointer, rounded, 0, device, kind);
    return pointer;
}

int vg_host_free(void *pointer)
{
    vg_block block;
    if (!pointer)
        return 0;
    if (vg_blocks_remove(pointer, &block))
        return -1;
    munmap(pointer, block.size);
    return 0;
}

/* ---- copies ----

   Kernels write nothing, so a result that the host reads back (.item(), the count of nonzero()) would be
   whatever the block held before: a stale 1.0f read as a count asks for 8 GB. Small reads are therefore
   zeros, unless the host itself wrote those bytes and no kernel has run since. */

#define REMEMBERED 256

static struct {
    uintptr_t address;
    size_t size;
    uint64_t epoch;
} writes[REMEMBERED];
static unsigned next_write;
static uint64_t epoch = 1; /* grows with each kernel */
static pthread_mutex_t writes_mutex = PTHREAD_MUTEX_INITIALIZER;

void vg_kernel_ran(void)
{
    __atomic_add_fetch(&epoch, 1, __ATOMIC_RELAXED);
}

static void remember_write(const void *pointer, size_t size)
{
    pthread_mutex_lock(&writes_mutex);
    unsigned i = next_write++ % REMEMBERED;
    writes[i].address = (uintptr_t)pointer;
    writes[i].size = size;
    writes[i].epoch = epoch;
    pthread_mutex_unlock(&writes_mutex);
}

static int was_written(const void *pointer, size_t size)
{
    int found = 0;
    uintptr_t begin = (uintptr_t)pointer, end = begin + size;
    pthread_mutex_lock(&writes_mutex);
    for (int i = 0; i < REMEMBERED && !found; i++) {
        int current = writes[i].epoch == epoch;
        found = current && writes[i].address <= begin && end <= writes[i].address + writes[i].size;
    }
    pthread_mutex_unlock(&writes_mutex);
    return found;
}

/* Larger copies move nothing. To the host they move in any case: a program may look at what it gets. */
static size_t copy_limit(int to_device, int from_device)
{
    if (!to_device)
        return SIZE_MAX;
    return from_device ? BIG_COPY : vg_env_size(VG_ENV("COPY_MAX_BYTES"), 0, SIZE_MAX);
}

static int on_device(const void *pointer)
{
    vg_block block;
    return vg_blocks_find(pointer, &block) == 0 && block.kind == VG_DEVICE;
}

void vg_copy(void *destination, const void *source, size_t size)
{
    int to_device = on_device(destination), from_device = on_device(source);
    if (size > copy_limit(to_device, from_device))
        return;
    if (from_device && !to_device && size <= SMALL_READ && !was_written(source, size)) {
        memset(destination, 0, size);
        return;
    }
    memmove(destination, source, size);
    if (to_device && (!from_device || was_written(source, size)))
        remember_write(destination, size);
}

/* Give whole pages back to the host instead of filling them with zeros. */
static void clear(char *pointer, size_t size)
{
    char *begin = (char *)round_up((uintptr_t)pointer, HOST_PAGE);
    char *end = (char *)((uintptr_t)(pointer + size) & ~(HOST_PAGE - 1));
    memset(pointer, 0, (size_t)(begin - pointer));
    madvise(begin, (size_t)(end - begin), MADV_DONTNEED);
    memset(end, 0, (size_t)(pointer + size - end));
}

void vg_set(void *destination, int value, size_t size)
{
    remember_write(destination, size);
    if (value == 0 && size >= 16 * HOST_PAGE)
        clear(destination, size);
    else if (size <= BIG_COPY)
        memset(destination, value, size);
}
