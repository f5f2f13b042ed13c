/* libcudnn: LSTM, GRU and plain RNN. Weights lie layer by layer, matrices first and biases after all of them;
   workspace and reserve sizes are estimates. */
#include "cudnn.h"

enum { MODE_LSTM = 2, MODE_GRU = 3, NO_BIAS = 0, BIDIRECTIONAL = 1, TRAINING = 1 };

typedef struct {
    int type;
    int element_size;
    int gates;
    int has_bias;
    int directions;
    int input_size;
    int hidden_size;
    int layers;
} rnn;

typedef struct {
    int steps, batch;
} rnn_data;

int cudnnSetRNNDescriptor_v8(rnn *r, int algorithm, int mode, int bias, int direction, int input_mode,
                             int type, int math_precision, int math_type, int32_t input_size,
                             int32_t hidden_size, int32_t projection, int32_t layers, void *dropout,
                             uint32_t flags)
{
    (void)algorithm, (void)input_mode, (void)math_precision, (void)math_type, (void)dropout, (void)flags;
    if (projection && projection != hidden_size)
        return CUDNN_STATUS_NOT_SUPPORTED;
    r->type = type;
    r->element_size = type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
    r->gates = mode == MODE_LSTM ? 4 : mode == MODE_GRU ? 3 : 1;
    r->has_bias = bias != NO_BIAS;
    r->directions = direction == BIDIRECTIONAL ? 2 : 1;
    r->input_size = input_size;
    r->hidden_size = hidden_size;
    r->layers = layers;
    return 0;
}

int cudnnSetRNNDataDescriptor(rnn_data *d, int type, int layout, int steps, int batch, int vector,
                              const int *lengths, void *padding)
{
    (void)type, (void)layout, (void)vector, (void)lengths, (void)padding;
    d->steps = steps;
    d->batch = batch;
    return 0;
}

/* A pseudo-layer is a layer in one direction; its first `gates` matrices multiply the input, the rest
   the state. */
static size_t matrix_columns(const rnn *r, int layer, int matrix)
{
    if (matrix >= r->gates)
        return (size_t)r->hidden_size;
    return (size_t)(layer / r->directions ? r->hidden_size * r->directions : r->input_size);
}

static size_t matrix_offset(const rnn *r, int layer, int matrix)
{
    size_t offset = 0;
    for (int l = 0; l <= layer && l < r->layers * r->directions; l++)
        for (int m = 0; m < 2 * r->gates && (l < layer || m < matrix); m++)
            offset += (size_t)r->hidden_size * matrix_columns(r, l, m);
    return offset;
}

static size_t bias_offset(const rnn *r, int layer, int matrix)
{
    size_t matrices = matrix_offset(r, r->layers * r->directions, 0);
    return matrices + ((size_t)layer * 2 * (size_t)r->gates + (size_t)matrix) * (size_t)r->hidden_size;
}

int cudnnGetRNNWeightSpaceSize(cudnn_handle *handle, rnn *r, size_t *size)
{
    (void)handle;
    int layers = r->layers * r->directions;
    size_t elements = r->has_bias ? bias_offset(r, layers, 0) : matrix_offset(r, layers, 0);
    *size = elements * (size_t)r->element_size;
    return 0;
}

int cudnnGetRNNWeightParams(cudnn_handle *handle, rnn *r, int32_t layer, size_t size, const void *weights,
                            int32_t matrix, tensor *matrix_tensor, void **matrix_address, tensor *bias_tensor,
                            void **bias_address)
{
    (void)handle, (void)size;
    char *base = (char *)weights;
    size_t element = (size_t)r->element_size;
    int rows = r->hidden_size, columns = (int)matrix_columns(r, layer, matrix);
    if (matrix_address)
        *matrix_address = base + matrix_offset(r, layer, matrix) * element;
    if (bias_address)
        *bias_address = r->has_bias ? base + bias_offset(r, layer, matrix) * element : NULL;
    if (matrix_tensor) {
        int sizes[] = { 1, rows, columns }, strides[] = { rows * columns, columns, 1 };
        cudnnSetTensorNdDescriptor(matrix_tensor, r->type, 3, sizes, strides);
    }
    if (bias_tensor) {
        int sizes[] = { 1, rows, 1 }, strides[] = { rows, 1, 1 };
        cudnnSetTensorNdDescriptor(bias_tensor, r->type, 3, sizes, strides);
    }
    return 0;
}

int cudnnGetRNNTempSpaceSizes(cudnn_handle *handle, rnn *r, int mode, rnn_data *d, size_t *workspace,
                              size_t *reserve)
{
    (void)handle;
    size_t outputs = (size_t)d->steps * (size_t)d->batch * (size_t)(r->hidden_size * r->directions);
    size_t unit = outputs * (size_t)r->element_size;
    if (workspace)
        *workspace = unit * (size_t)r->gates;
    if (reserve)
        *reserve = mode == TRAINING ? unit * (size_t)(r->layers * (r->gates + 2)) : 0;
    return 0;
}
