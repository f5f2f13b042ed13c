/* The few types of the CUDA driver that cross its binary interface. */
#ifndef AUTOACCUM_VIRTUAL_DRIVER_H
#define AUTOACCUM_VIRTUAL_DRIVER_H

#include "device.h"

#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;
typedef void *CUcontext;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_FOUND = 500,
};

#endif
