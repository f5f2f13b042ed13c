/* What the three parts of libcudnn share. */
#ifndef AUTOACCUM_VIRTUAL_CUDNN_H
#define AUTOACCUM_VIRTUAL_CUDNN_H

#include "device.h"

typedef struct {
    void *stream;
} cudnn_handle;

typedef struct {
    int type;
    int dimensions;
    int sizes[8];
    int strides[8];
    int format; /* of a filter */
} tensor;

enum { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_DOUBLE = 1, CUDNN_STATUS_NOT_SUPPORTED = 3000 };

uint64_t vg_cudnn_workspace(void); /* what each plan asks for */
int cudnnSetTensorNdDescriptor(tensor *t, int type, int dimensions, const int *sizes, const int *strides);

#endif
