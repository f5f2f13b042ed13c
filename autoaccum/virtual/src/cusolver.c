/* libcusolver: handles only. Every factorisation says "not supported", because the size of its workspace,
   which PyTorch would ask for first, is not known here. */
#include <stdlib.h>

static int make(void **out)
{
    *out = calloc(1, 256);
    return 0;
}

static int drop(void *object)
{
    free(object);
    return 0;
}

int cusolverDnCreate(void **handle)
{
    return make(handle);
}

int cusolverDnDestroy(void *handle)
{
    return drop(handle);
}

int cusolverDnSetStream(void *handle, void *stream)
{
    *(void **)handle = stream;
    return 0;
}

int cusolverDnGetStream(void *handle, void **stream)
{
    *stream = *(void **)handle;
    return 0;
}

int cusolverDnCreateParams(void **parameters)
{
    return make(parameters);
}

int cusolverDnDestroyParams(void *parameters)
{
    return drop(parameters);
}

int cusolverDnCreateGesvdjInfo(void **info)
{
    return make(info);
}

int cusolverDnDestroyGesvdjInfo(void *info)
{
    return drop(info);
}
