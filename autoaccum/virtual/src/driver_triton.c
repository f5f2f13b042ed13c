/* libcuda: what Triton's launcher links beyond PyTorch, for torch.compile. Its kernels are compiled for real
   by the ptxas that comes with it, and then launched like all others: they do not run. */
#define _GNU_SOURCE
#include "driver.h"

typedef struct {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared;
    void *stream;
} launch_config; /* the beginning of CUlaunchConfig */
_Static_assert(offsetof(launch_config, stream) == 32, "CUlaunchConfig");

CUresult cuLaunchKernelEx(const launch_config *config, void *function, void **arguments, void **extra)
{
    (void)function, (void)arguments, (void)extra;
    uint64_t blocks = (uint64_t)config->grid_x * config->grid_y * config->grid_z;
    uint64_t threads = blocks * config->block_x * config->block_y * config->block_z;
    vg_launch(vg_stream_of(config->stream, vg_current_ready()), threads);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, void *function, const launch_config *config)
{
    (void)function, (void)config;
    *clusters = 1;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(void *stream, int *status)
{
    *status = vg_stream_of(stream, vg_current())->capturing;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
    (void)limit;
    *value = 1 << 20;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    (void)limit, (void)value;
    return CUDA_SUCCESS;
}
