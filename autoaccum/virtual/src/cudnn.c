/* libcudnn: handles, descriptors, and the older entry points for convolution, batch norm and dropout. */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

uint64_t vg_cudnn_workspace(void)
{
    return vg_env_size(VG_ENV("CUDNN_WORKSPACE_BYTES"), 0, 0);
}

/* ---- the library ---- */

size_t cudnnGetVersion(void)
{
    return VG_CUDNN_VERSION;
}

size_t cudnnGetMaxDeviceVersion(void)
{
    return 1210; /* compute capability 12.1 */
}

size_t cudnnGetCudartVersion(void)
{
    return VG_CUDA_VERSION;
}

int cudnnGetProperty(int part, int *value)
{
    const int parts[] = { VG_CUDNN_VERSION / 10000, VG_CUDNN_VERSION / 100 % 100, VG_CUDNN_VERSION % 100 };
    *value = part >= 0 && part < 3 ? parts[part] : 0;
    return 0;
}

const char *cudnnGetErrorString(int status)
{
    return status ? "error of the virtual GPU's cuDNN" : "CUDNN_STATUS_SUCCESS";
}

void cudnnGetLastErrorString(char *out, size_t capacity)
{
    if (capacity)
        *out = 0;
}

int cudnnCreate(cudnn_handle **handle)
{
    vg_current_ready();
    *handle = calloc(1, sizeof **handle);
    return 0;
}

int cudnnDestroy(cudnn_handle *handle)
{
    free(handle);
    return 0;
}

int cudnnSetStream(cudnn_handle *handle, void *stream)
{
    handle->stream = stream;
    return 0;
}

int cudnnGetStream(cudnn_handle *handle, void **stream)
{
    *stream = handle->stream;
    return 0;
}

/* ---- descriptors; 512 bytes hold any of them ---- */

#define DESCRIPTOR(kind)                                 \
    int cudnnCreate##kind##Descriptor(void **descriptor) \
    {                                                    \
        *descriptor = calloc(1, 512);                    \
        return 0;                                        \
    }                                                    \
    int cudnnDestroy##kind##Descriptor(void *descriptor) \
    {                                                    \
        free(descriptor);                                \
        return 0;                                        \
    }

DESCRIPTOR(Tensor)
DESCRIPTOR(Filter)
DESCRIPTOR(Convolution)
DESCRIPTOR(Activation)
DESCRIPTOR(Dropout)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Pooling)

static size_t shape_bytes(const tensor *t)
{
    return (size_t)t->dimensions * sizeof(int);
}

int cudnnSetTensorNdDescriptor(tensor *t, int type, int dimensions, const int *sizes, const int *strides)
{
    t->type = type;
    t->dimensions = dimensions > 8 ? 8 : dimensions;
    memcpy(t->sizes, sizes, shape_bytes(t));
    memcpy(t->strides, strides, shape_bytes(t));
    return 0;
}

int cudnnGetTensorNdDescriptor(const tensor *t, int requested, int *type, int *dimensions, int *sizes,
                               int *strides)
{
    (void)requested;
    *type = t->type;
    *dimensions = t->dimensions;
    memcpy(sizes, t->sizes, shape_bytes(t));
    memcpy(strides, t->strides, shape_bytes(t));
    return 0;
}

int cudnnSetFilterNdDescriptor(tensor *t, int type, int format, int dimensions, const int *sizes)
{
    t->type = type;
    t->format = format;
    t->dimensions = dimensions > 8 ? 8 : dimensions;
    memcpy(t->sizes, sizes, shape_bytes(t));
    return 0;
}

int cudnnGetFilterNdDescriptor(const tensor *t, int requested, int *type, int *format, int *dimensions,
                               int *sizes)
{
    (void)requested;
    *type = t->type;
    *format = t->format;
    *dimensions = t->dimensions;
    memcpy(sizes, t->sizes, shape_bytes(t));
    return 0;
}

/* ---- convolution: one algorithm is on offer ---- */

typedef struct {
    int algorithm;
    int status;
    float time;
    size_t workspace;
    int deterministic;
    int math_type;
    int reserved[3];
} algorithm_result;
_Static_assert(sizeof(algorithm_result) == 48, "cudnnConvolutionFwdAlgoPerf_t and its two siblings");

static int offer(int *count, algorithm_result *result)
{
    memset(result, 0, sizeof *result);
    result->algorithm = 1; /* implicit precomputed GEMM, or "algorithm 1" of the backward passes */
    result->workspace = vg_cudnn_workspace();
    result->deterministic = 1;
    *count = 1;
    return 0;
}

#define OFFER(name)                                                                                     \
    int name(cudnn_handle *handle, void *one, void *two, void *convolution, void *three, int requested, \
             int *count, algorithm_result *result)                                                      \
    {                                                                                                   \
        (void)handle, (void)one, (void)two, (void)convolution, (void)three, (void)requested;            \
        return offer(count, result);                                                                    \
    }

OFFER(cudnnGetConvolutionForwardAlgorithm_v7)
OFFER(cudnnGetConvolutionBackwardDataAlgorithm_v7)
OFFER(cudnnGetConvolutionBackwardFilterAlgorithm_v7)

#define FIND(name)                                                                                          \
    int name(cudnn_handle *handle, void *one, const void *one_data, void *two, const void *two_data,        \
             void *convolution, void *three, void *three_data, int requested, int *count,                   \
             algorithm_result *result)                                                                      \
    {                                                                                                       \
        (void)handle, (void)one, (void)one_data, (void)two, (void)two_data, (void)convolution, (void)three; \
        (void)three_data, (void)requested;                                                                  \
        return offer(count, result);                                                                        \
    }

FIND(cudnnFindConvolutionForwardAlgorithmEx)
FIND(cudnnFindConvolutionBackwardDataAlgorithmEx)
FIND(cudnnFindConvolutionBackwardFilterAlgorithmEx)

#define WORKSPACE(name)                                                                                 \
    int name(cudnn_handle *handle, void *one, void *two, void *convolution, void *three, int algorithm, \
             size_t *size)                                                                              \
    {                                                                                                   \
        (void)handle, (void)one, (void)two, (void)convolution, (void)three, (void)algorithm;            \
        *size = vg_cudnn_workspace();                                                                   \
        return 0;                                                                                       \
    }

WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize)
WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize)

/* ---- batch norm, dropout and CTC ---- */

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(cudnn_handle *handle, int mode, int operations,
                                                             void *x, void *z, void *y, void *scale,
                                                             void *activation, size_t *size)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *size = 0;
    return 0;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(cudnn_handle *handle, int mode, int operations, void *x,
                                                      void *y, void *dy, void *dz, void *dx, void *scale,
                                                      void *activation, size_t *size)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    (void)activation;
    *size = 0;
    return 0;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnn_handle *handle, int mode, int operations,
                                                         void *activation, void *x, size_t *size)
{
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    *size = 0;
    return 0;
}

int cudnnDropoutGetStatesSize(cudnn_handle *handle, size_t *size)
{
    (void)handle;
    *size = 1 << 20;
    return 0;
}

int cudnnGetCTCLossWorkspaceSize(cudnn_handle *handle, void *probabilities, void *gradients,
                                 const int *labels, const int *label_lengths, const int *input_lengths,
                                 int algorithm, void *loss, size_t *size)
{
    (void)handle, (void)probabilities, (void)gradients, (void)labels, (void)label_lengths,
        (void)input_lengths;
    (void)algorithm, (void)loss;
    *size = 0;
    return 0;
}

int cudnnGetCTCLossWorkspaceSize_v8(cudnn_handle *handle, int algorithm, void *loss, void *probabilities,
                                    void *gradients, size_t *size)
{
    (void)handle, (void)algorithm, (void)loss, (void)probabilities, (void)gradients;
    *size = 0;
    return 0;
}
