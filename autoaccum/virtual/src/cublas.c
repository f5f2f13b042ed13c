/* libcublas: handles and modes; a matrix product only takes simulated time. The rest is generated stubs. */
#include "device.h"

#include <stdlib.h>

typedef struct {
    void *stream;
    int math_mode;
    int pointer_mode;
    int multiprocessors;
} handle;

static int product(handle *h, double m, double n, double k, double batches)
{
    vg_compute(vg_stream_of(h->stream, vg_current()), 2 * m * n * k * batches);
    return 0;
}

int cublasCreate_v2(handle **h)
{
    vg_current_ready();
    *h = calloc(1, sizeof **h);
    return *h ? 0 : 3;
}

int cublasDestroy_v2(handle *h)
{
    free(h);
    return 0;
}

int cublasGetVersion_v2(handle *h, int *version)
{
    (void)h;
    *version = VG_CUBLAS_VERSION;
    return 0;
}

int cublasGetProperty(int part, int *value)
{
    const int parts[] = { VG_CUBLAS_VERSION / 10000, VG_CUBLAS_VERSION / 100 % 100, VG_CUBLAS_VERSION % 100 };
    *value = part >= 0 && part < 3 ? parts[part] : 0;
    return 0;
}

int cublasSetStream_v2(handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}

int cublasGetStream_v2(handle *h, void **stream)
{
    *stream = h->stream;
    return 0;
}

int cublasSetMathMode(handle *h, int mode)
{
    h->math_mode = mode;
    return 0;
}

int cublasGetMathMode(handle *h, int *mode)
{
    *mode = h->math_mode;
    return 0;
}

int cublasSetPointerMode_v2(handle *h, int mode)
{
    h->pointer_mode = mode;
    return 0;
}

int cublasGetPointerMode_v2(handle *h, int *mode)
{
    *mode = h->pointer_mode;
    return 0;
}

int cublasSetSmCountTarget(handle *h, int count)
{
    h->multiprocessors = count;
    return 0;
}

int cublasGetSmCountTarget(handle *h, int *count)
{
    *count = h->multiprocessors;
    return 0;
}

const char *cublasGetStatusString(int status)
{
    return status ? "error of the virtual GPU's cuBLAS" : "CUBLAS_STATUS_SUCCESS";
}

const char *cublasGetStatusName(int status)
{
    return cublasGetStatusString(status);
}

/* Every product begins (handle, transa, transb, m, n, k, ...); only those six arguments are read. */
#define PRODUCT(name)                                                \
    int name(handle *h, int transa, int transb, int m, int n, int k) \
    {                                                                \
        (void)transa, (void)transb;                                  \
        return product(h, m, n, k, 1);                               \
    }

PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasCgemm_v2)
PRODUCT(cublasZgemm_v2)
PRODUCT(cublasSgemmEx)
PRODUCT(cublasGemmEx)

int cublasSgemmStridedBatched(handle *h, int transa, int transb, int m, int n, int k, const float *alpha,
                              const float *a, int lda, long long stride_a, const float *b, int ldb,
                              long long stride_b, const float *beta, float *c, int ldc, long long stride_c,
                              int count)
{
    (void)transa, (void)transb, (void)alpha, (void)a, (void)lda, (void)stride_a, (void)b, (void)ldb;
    (void)stride_b, (void)beta, (void)c, (void)ldc, (void)stride_c;
    return product(h, m, n, k, count);
}

int cublasGemmStridedBatchedEx(handle *h, int transa, int transb, int m, int n, int k, const void *alpha,
                               const void *a, int type_a, int lda, long long stride_a, const void *b,
                               int type_b, int ldb, long long stride_b, const void *beta, void *c, int type_c,
                               int ldc, long long stride_c, int count)
{
    (void)transa, (void)transb, (void)alpha, (void)a, (void)type_a, (void)lda, (void)stride_a, (void)b;
    (void)type_b, (void)ldb, (void)stride_b, (void)beta, (void)c, (void)type_c, (void)ldc, (void)stride_c;
    return product(h, m, n, k, count);
}
