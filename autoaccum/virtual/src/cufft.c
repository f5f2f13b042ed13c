/* libcufft: plans without a workspace. */
#include <stddef.h>

int cufftCreate(int *plan)
{
    *plan = 1;
    return 0;
}

int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *in_embed, long long in_stride,
                        long long in_dist, int in_type, long long *out_embed, long long out_stride,
                        long long out_dist, int out_type, long long batch, size_t *workspace, int type)
{
    (void)plan, (void)rank, (void)n, (void)in_embed, (void)in_stride, (void)in_dist, (void)in_type;
    (void)out_embed, (void)out_stride, (void)out_dist, (void)out_type, (void)batch, (void)type;
    *workspace = 0;
    return 0;
}
