/* libnvrtc: programs that compile to nothing, for PyTorch's kernels that are compiled at run time. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_SIZE 8

int nvrtcVersion(int *major, int *minor)
{
    *major = VG_CUDA_VERSION / 1000;
    *minor = VG_CUDA_VERSION % 1000 / 10;
    return 0;
}

const char *nvrtcGetErrorString(int error)
{
    return error ? "error of the virtual GPU's NVRTC" : "NVRTC_SUCCESS";
}

int nvrtcCreateProgram(void **program, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names)
{
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = calloc(1, 64);
    return 0;
}

int nvrtcDestroyProgram(void **program)
{
    free(*program);
    *program = NULL;
    return 0;
}

int nvrtcGetProgramLogSize(void *program, size_t *size)
{
    (void)program;
    *size = 1;
    return 0;
}

int nvrtcGetProgramLog(void *program, char *log)
{
    (void)program;
    *log = 0;
    return 0;
}

static int image_size(size_t *size)
{
    *size = IMAGE_SIZE;
    return 0;
}

static int image(char *out)
{
    memset(out, 0, IMAGE_SIZE);
    return 0;
}

int nvrtcGetPTXSize(void *program, size_t *size)
{
    (void)program;
    return image_size(size);
}

int nvrtcGetPTX(void *program, char *out)
{
    (void)program;
    return image(out);
}

int nvrtcGetCUBINSize(void *program, size_t *size)
{
    (void)program;
    return image_size(size);
}

int nvrtcGetCUBIN(void *program, char *out)
{
    (void)program;
    return image(out);
}

int nvrtcGetLoweredName(void *program, const char *expression, const char **name)
{
    (void)program, (void)expression;
    *name = "nothing";
    return 0;
}
