/* libcusparse: handles only; PyTorch makes one as soon as a sparse tensor is used. */
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

const char *cusparseGetErrorString(int error)
{
    return error ? "error of the virtual GPU's cuSPARSE" : "success";
}
