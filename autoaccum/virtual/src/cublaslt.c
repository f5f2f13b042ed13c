/* libcublasLt: descriptors remember their shape for the simulated time; one algorithm is on offer. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { DESC_TRANSA = 3, LAYOUT_BATCH_COUNT = 5, INVALID_VALUE = 7 };

typedef struct {
    int transa;
} matmul;

typedef struct {
    uint64_t rows, columns;
    int32_t batches;
} layout;

typedef struct {
    uint64_t algorithm[8];
    size_t workspace_size;
    int state;
    float waves;
    int reserved[4];
} heuristic_result;
_Static_assert(sizeof(heuristic_result) == 96, "cublasLtMatmulHeuristicResult_t");

int cublasLtCreate(void **handle)
{
    *handle = calloc(1, 64);
    return 0;
}

int cublasLtDestroy(void *handle)
{
    free(handle);
    return 0;
}

size_t cublasLtGetVersion(void)
{
    return VG_CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return VG_CUDA_VERSION;
}

int cublasLtMatmulDescCreate(matmul **out, int compute, int scale)
{
    (void)compute, (void)scale;
    *out = calloc(1, sizeof **out);
    return 0;
}

int cublasLtMatmulDescDestroy(matmul *m)
{
    free(m);
    return 0;
}

int cublasLtMatmulDescSetAttribute(matmul *m, int attribute, const void *value, size_t size)
{
    (void)size;
    if (attribute == DESC_TRANSA)
        m->transa = *(const int *)value;
    return 0;
}

int cublasLtMatrixLayoutCreate(layout **out, int type, uint64_t rows, uint64_t columns, int64_t leading)
{
    (void)type, (void)leading;
    layout *made = calloc(1, sizeof *made);
    if (!made)
        return 3;
    made->rows = rows;
    made->columns = columns;
    made->batches = 1;
    *out = made;
    return 0;
}

int cublasLtMatrixLayoutDestroy(layout *l)
{
    free(l);
    return 0;
}

int cublasLtMatrixLayoutSetAttribute(layout *l, int attribute, const void *value, size_t size)
{
    (void)size;
    if (attribute == LAYOUT_BATCH_COUNT)
        l->batches = *(const int32_t *)value;
    return 0;
}

int cublasLtMatmulPreferenceCreate(void **preference)
{
    *preference = calloc(1, 64);
    return 0;
}

int cublasLtMatmulPreferenceDestroy(void *preference)
{
    free(preference);
    return 0;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, matmul *m, layout *a, layout *b, layout *c, layout *d,
                                   void *preference, int requested, heuristic_result *results, int *count)
{
    (void)handle, (void)m, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *count = 0;
    if (requested < 1)
        return INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *count = 1;
    return 0;
}

int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id,
                           void *algorithm)
{
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d, (void)id;
    memset(algorithm, 0, sizeof(uint64_t[8]));
    return 0;
}

int cublasLtMatmulAlgoCheck(void *handle, matmul *m, layout *a, layout *b, layout *c, layout *d,
                            const void *algorithm, heuristic_result *result)
{
    (void)handle, (void)m, (void)a, (void)b, (void)c, (void)d, (void)algorithm;
    memset(result, 0, sizeof *result);
    result->waves = 1;
    return 0;
}

int cublasLtMatmul(void *handle, matmul *m, const void *alpha, const void *a, layout *a_layout, const void *b,
                   layout *b_layout, const void *beta, const void *c, layout *c_layout, void *d,
                   layout *d_layout, const void *algorithm, void *workspace, size_t workspace_size,
                   void *stream)
{
    (void)handle, (void)alpha, (void)a, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d;
    (void)algorithm, (void)workspace, (void)workspace_size;
    double inner = (double)(m->transa ? a_layout->rows : a_layout->columns);
    double outer = (double)d_layout->rows * (double)d_layout->columns * d_layout->batches;
    vg_compute(vg_stream_of(stream, vg_current()), 2 * outer * inner);
    return 0;
}
