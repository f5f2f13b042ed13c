/* libcusparse: handles only; PyTorch makes one as soon as a sparse tensor is used. Products of sparse
   matrices say "not supported", because the size of their workspace is not known here. */
#include <stdlib.h>

int cusparseCreate(void **handle)
{
    *handle = calloc(1, 256);
    return 0;
}

int cusparseDestroy(void *handle)
{
    free(handle);
    return 0;
}

int cusparseSetStream(void *handle, void *stream)
{
    *(void **)handle = stream;
    return 0;
}

int cusparseGetStream(void *handle, void **stream)
{
    *stream = *(void **)handle;
    return 0;
}

int cusparseSetPointerMode(void *handle, int mode)
{
    (void)handle, (void)mode;
    return 0;
}

const char *cusparseGetErrorString(int error)
{
    return error ? "not supported by the virtual GPU" : "success";
}
