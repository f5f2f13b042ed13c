/* The few types of the CUDA runtime that cross its binary interface, written down for CUDA 12 and 13. */
#ifndef AUTOACCUM_VIRTUAL_RUNTIME_H
#define AUTOACCUM_VIRTUAL_RUNTIME_H

#include "device.h"

#include <stdint.h>

typedef int cudaError_t;
typedef vg_stream *cudaStream_t;

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidSymbol = 13,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorOperatingSystem = 304,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorPeerAccessAlreadyEnabled = 704,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999,
};

typedef struct {
    unsigned x, y, z;
} dim3;

/* Remember an error for cudaGetLastError(), and give it. */
cudaError_t vg_fail(cudaError_t error);

#define NEED_DEVICE()                          \
    do {                                       \
        if (vg_visible_devices() == 0)         \
            return vg_fail(cudaErrorNoDevice); \
    } while (0)

#define TRACE(...)                                        \
    do {                                                  \
        if (vg_trace() > 1)                               \
            fprintf(stderr, "virtual GPU: " __VA_ARGS__); \
    } while (0)

static inline vg_stream *stream_here(cudaStream_t stream)
{
    return vg_stream_of(stream, vg_current());
}

#endif
