/* libcudart: kernels, which are registered and launched but never run, and the way to the driver's functions.
 */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- modules; AUTOACCUM_VIRTUAL_TRACE=3 keeps the names of kernels, so that launches can be printed ---- */

#define NAMES ((size_t)1 << 20)

static struct {
    const void *function;
    const char *name;
} *names;

static size_t name_slot(const void *function)
{
    size_t i = (((uintptr_t)function >> 4) * 0x9E3779B97F4A7C15ull) & (NAMES - 1);
    while (names[i].function && names[i].function != function)
        i = (i + 1) & (NAMES - 1);
    return i;
}

/* ---- which architectures the kernels were compiled for ----

   A kernel runs as it was compiled for the newest architecture that the device can run, and says so: CUB picks its
   algorithms by that, and gives up where it is one that it was never compiled for, such as 8.9 in PyTorch's wheels.
   A few kernels are compiled for such a one alone: what counts is what most binaries have. */

typedef struct {
    uint32_t magic, version;
    const unsigned char *data;
} fat_wrapper;

typedef struct {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
} fat_header;

typedef struct {
    uint16_t kind, flags;
    uint32_t header_size;
    uint64_t size;
    uint32_t unused[3];
    uint32_t architecture; /* 86 for 8.6 */
} fat_entry;
_Static_assert(sizeof(fat_wrapper) == 16 && sizeof(fat_header) == 16 && sizeof(fat_entry) == 32, "fat binaries");

enum { FAT_WRAPPER = 0x466243b1, FAT_HEADER = 0xba55ed50u, FAT_CODE = 2, MOST_ARCHITECTURES = 256 };
static int binaries, compiled[MOST_ARCHITECTURES]; /* counted as the linker loads libraries, one by one */

static void note_architectures(const fat_wrapper *wrapper)
{
    if (!wrapper || wrapper->magic != FAT_WRAPPER || !wrapper->data)
        return;
    fat_header header;
    memcpy(&header, wrapper->data, sizeof header);
    if (header.magic != (uint32_t)FAT_HEADER)
        return;
    binaries++;
    const unsigned char *at = wrapper->data + header.header_size, *end = at + header.size;
    while (at + sizeof(fat_entry) <= end) {
        fat_entry entry;
        memcpy(&entry, at, sizeof entry);
        if (entry.header_size < sizeof entry)
            return;
        if (entry.kind == FAT_CODE && entry.architecture < MOST_ARCHITECTURES)
            compiled[entry.architecture]++;
        at += entry.header_size + entry.size;
    }
}

static int compiled_for(int capability)
{
    for (int each = capability; each >= capability / 10 * 10; each--)
        if (each < MOST_ARCHITECTURES && 2 * compiled[each] > binaries)
            return each;
    return capability;
}

void **__cudaRegisterFatBinary(void *binary)
{
    note_architectures(binary);
    return calloc(1, sizeof(void *));
}

void __cudaRegisterFatBinaryEnd(void **module)
{
    (void)module;
}

void __cudaUnregisterFatBinary(void **module)
{
    free(module);
}

char __cudaInitModule(void **module)
{
    (void)module;
    return 1;
}

void __cudaRegisterFunction(void **module, const char *function, char *device_function, const char *name,
                            int limit, void *thread, void *block, void *block_dim, void *grid_dim, int *warp)
{
    (void)module, (void)device_function, (void)limit, (void)thread, (void)block, (void)block_dim;
    (void)grid_dim, (void)warp;
    if (vg_trace() < 3)
        return;
    if (!names)
        names = calloc(NAMES, sizeof *names);
    size_t i = name_slot(function);
    names[i].function = function;
    names[i].name = name;
}

/* ---- launches ---- */

#define NESTED 16

static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configurations[NESTED];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (depth == NESTED)
        return 1;
    configurations[depth].grid = grid;
    configurations[depth].block = block;
    configurations[depth].shared = shared;
    configurations[depth].stream = stream;
    depth++;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0)
        return cudaErrorUnknown;
    depth--;
    *grid = configurations[depth].grid;
    *block = configurations[depth].block;
    *shared = configurations[depth].shared;
    *(cudaStream_t *)stream = configurations[depth].stream;
    return cudaSuccess;
}

static void print_launch(const void *function, dim3 grid, dim3 block)
{
    const char *name = names[name_slot(function)].name;
    fprintf(stderr, "virtual GPU: launch %s grid %ux%ux%u block %ux%ux%u\n", name ? name : "?", grid.x,
            grid.y, grid.z, block.x, block.y, block.z);
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, cudaStream_t stream)
{
    NEED_DEVICE();
    vg_current_ready();
    if (names)
        print_launch(function, grid, block);
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    vg_launch(stream_here(stream), blocks * block.x * block.y * block.z);
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch(function, grid, block, stream);
}

cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch(kernel, grid, block, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t stream)
{
    (void)arguments, (void)shared;
    return launch(function, grid, block, stream);
}

typedef struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} launch_config; /* the beginning of cudaLaunchConfig_t */

cudaError_t cudaLaunchKernelExC(const launch_config *config, const void *function, void **arguments)
{
    (void)arguments;
    return launch(function, config->grid, config->block, config->stream);
}

cudaError_t __cudaGetKernel(const void **kernel, const void *function)
{
    *kernel = function;
    return cudaSuccess;
}

cudaError_t cudaGetKernel(const void **kernel, const void *function)
{
    *kernel = function;
    return cudaSuccess;
}

/* ---- what a kernel says about itself ---- */

typedef struct {
    size_t shared_size, constant_size, local_size;
    int max_threads_per_block;
    int registers;
    int ptx_version;
    int binary_version;
    int cache_mode;
    int max_dynamic_shared_size;
    int rest[24];
} function_attributes;
_Static_assert(sizeof(function_attributes) == 144, "cudaFuncAttributes");

cudaError_t cudaFuncGetAttributes(function_attributes *out, const void *function)
{
    (void)function;
    memset(out, 0, sizeof *out);
    out->max_threads_per_block = 1024;
    out->registers = 32;
    out->ptx_version = compiled_for(vg_capability(vg_current()));
    out->binary_version = out->ptx_version;
    out->max_dynamic_shared_size = 49152;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int block_size, size_t shared,
                                                                   unsigned flags)
{
    (void)function, (void)shared, (void)flags;
    int fitting = block_size > 0 ? 2048 / block_size : 1;
    if (fitting < 1)
        fitting = 1;
    *blocks = fitting > 32 ? 32 : fitting;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                          size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *function, int blocks,
                                                      int block_size)
{
    (void)function, (void)blocks, (void)block_size;
    *size = 49152;
    return cudaSuccess;
}

/* ---- driver functions by name: those of our own libcuda, the newest version that it has ---- */

static void *driver_function(const char *name)
{
    static const char *const suffixes[] = { "_v3", "_v2", "" };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *found = NULL;
    for (int i = 0; driver && i < 3 && !found; i++) {
        char symbol[256];
        snprintf(symbol, sizeof symbol, "%s%s", name, suffixes[i]);
        found = dlsym(driver, symbol);
    }
    return found;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, int *result)
{
    (void)version, (void)flags;
    *function = driver_function(name);
    TRACE("driver function %s is %p\n", name, *function);
    if (result)
        *result = *function ? 0 : 1; /* found, or no such symbol */
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *result)
{
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
