/* A quiet end of the process.

   Python up to 3.13 ends a thread that wants the GIL after finalisation with pthread_exit(), whose forced
   unwinding through PyTorch's C++ frames (an autograd thread still in a hook) aborts the process. As Python
   3.14 does, such a thread waits here for the end of the process instead. The library is preloaded, so its
   pthread_exit() is the one that Python finds. */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*exit_thread)(void *);

static int python_is_finalizing(void)
{
    int (*check)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* Python 3.13 */
    if (!check)
        check = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    return check && check();
}

__attribute__((noreturn, visibility("default"))) void pthread_exit(void *result)
{
    exit_thread real = (exit_thread)dlsym(RTLD_NEXT, "pthread_exit");
    while (!real || python_is_finalizing())
        pause();
    real(result);
    abort(); /* not reached */
}

void vg_leave_prepare(void)
{
    atexit(vg_forget_process);
}
