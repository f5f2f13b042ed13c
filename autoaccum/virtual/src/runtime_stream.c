/* libcudart: streams, events and graphs. A graph captures nothing, and its replay is one launch. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

typedef void (*host_function)(void *);
typedef void (*stream_callback)(cudaStream_t, cudaError_t, void *);

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    NEED_DEVICE();
    vg_stream *made = calloc(1, sizeof *made);
    if (!made)
        return vg_fail(cudaErrorMemoryAllocation);
    made->device = vg_current_ready();
    made->flags = flags;
    made->priority = priority;
    *stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if ((uintptr_t)stream > 2)
        free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    *priority = stream_here(stream)->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    *flags = stream_here(stream)->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    *id = (uintptr_t)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *ordinal)
{
    *ordinal = vg_ordinal(stream_here(stream)->device);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    NEED_DEVICE();
    vg_wait_until(stream_here(stream)->busy_until);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return stream_here(stream)->busy_until > vg_now() ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, host_function function, void *data)
{
    if (!stream_here(stream)->capturing)
        function(data);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, stream_callback function, void *data, unsigned flags)
{
    (void)flags;
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

/* ---- events ---- */

typedef struct {
    uint64_t time;
    int recorded;
} event;

cudaError_t cudaEventCreateWithFlags(event **made, unsigned flags)
{
    (void)flags;
    NEED_DEVICE();
    vg_current_ready();
    *made = calloc(1, sizeof **made);
    return *made ? cudaSuccess : vg_fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaEventCreate(event **made)
{
    return cudaEventCreateWithFlags(made, 0);
}

cudaError_t cudaEventDestroy(event *e)
{
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(event *e, cudaStream_t stream)
{
    uint64_t now = vg_now(), busy_until = stream_here(stream)->busy_until;
    e->time = busy_until > now ? busy_until : now;
    e->recorded = 1;
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(event *e, cudaStream_t stream, unsigned flags)
{
    (void)flags;
    return cudaEventRecord(e, stream);
}

cudaError_t cudaEventQuery(event *e)
{
    return e->time > vg_now() ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(event *e)
{
    vg_wait_until(e->time);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, event *from, event *to)
{
    if (!from->recorded || !to->recorded)
        return vg_fail(cudaErrorInvalidResourceHandle);
    if (to->time > vg_now())
        return cudaErrorNotReady;
    *milliseconds = (float)((double)(int64_t)(to->time - from->time) / 1e6);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, event *e, unsigned flags)
{
    (void)flags;
    vg_stream *queue = stream_here(stream);
    if (e->time > queue->busy_until)
        queue->busy_until = e->time;
    return cudaSuccess;
}

/* ---- graphs ---- */

static uint64_t captures;
static __thread int capture_mode;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
    (void)mode;
    vg_stream *queue = stream_here(stream);
    queue->capturing = 1;
    queue->capture_id = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
    queue->graph = calloc(1, 64);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, void **graph)
{
    vg_stream *queue = stream_here(stream);
    queue->capturing = 0;
    *graph = queue->graph;
    queue->graph = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status)
{
    *status = stream_here(stream)->capturing;
    return cudaSuccess;
}

/* The name means another list of arguments in each major release, and so does each suffix. */
static cudaError_t capture_info(cudaStream_t stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, const void **edges, size_t *count)
{
    vg_stream *queue = stream_here(stream);
    *status = queue->capturing;
    if (id)
        *id = queue->capture_id;
    if (graph)
        *graph = queue->graph;
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return cudaSuccess;
}

#if VG_CUDA_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id, void **graph,
                                     const void **dependencies, const void **edges, size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *status, unsigned long long *id)
{
    return capture_info(stream, status, id, NULL, NULL, NULL, NULL);
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, int *status, unsigned long long *id,
                                        void **graph, const void **dependencies, size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, NULL, count);
}

cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, int *status, unsigned long long *id,
                                        void **graph, const void **dependencies, const void **edges,
                                        size_t *count)
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    *executable = calloc(1, 64);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(void *executable, cudaStream_t stream)
{
    (void)executable;
    vg_launch(stream_here(stream), 0);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    (void)graph, (void)nodes;
    *count = 1; /* PyTorch warns about an empty graph */
    return cudaSuccess;
}

#if VG_CUDA_VERSION >= 13000
cudaError_t cudaGraphNodeGetDependencies(void *node, void **dependencies, void *edges, size_t *count)
{
    (void)node, (void)dependencies, (void)edges;
    *count = 0;
    return cudaSuccess;
}
#else
cudaError_t cudaGraphNodeGetDependencies(void *node, void **dependencies, size_t *count)
{
    (void)node, (void)dependencies;
    *count = 0;
    return cudaSuccess;
}
#endif

cudaError_t cudaGraphDestroy(void *graph)
{
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(void *executable)
{
    free(executable);
    return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(void **object, void *data, host_function destroy, unsigned references,
                                 unsigned flags)
{
    (void)data, (void)destroy, (void)references, (void)flags;
    *object = calloc(1, 16);
    return cudaSuccess;
}
