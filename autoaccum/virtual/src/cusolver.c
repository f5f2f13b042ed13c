/* libcusolver: handles only; factorisations raise, because their sizes are never filled in. */
#include <stdlib.h>

static int make(void **out)
{
    *out = calloc(1, 256);
    return 0;
}

int cusolverDnCreate(void **handle)
{
    return make(handle);
}

int cusolverDnDestroy(void *handle)
{
    free(handle);
    return 0;
}

int cusolverDnCreateParams(void **parameters)
{
    return make(parameters);
}

int cusolverDnCreateGesvdjInfo(void **info)
{
    return make(info);
}
