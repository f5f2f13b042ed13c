/* libcupti: the profiler may subscribe, and never hears of any activity. */
#include <stddef.h>
#include <stdint.h>

enum { MAX_LIMIT_REACHED = 12 }; /* how CUPTI says "no more records" */

int cuptiGetVersion(uint32_t *version)
{
    *version = VG_CUDA_VERSION * 10;
    return 0;
}

int cuptiGetResultString(int result, const char **text)
{
    (void)result;
    *text = "answer of the virtual GPU's CUPTI";
    return 0;
}

int cuptiSubscribe(void **subscriber, void *callback, void *data)
{
    (void)callback, (void)data;
    *subscriber = (void *)1;
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, void **record)
{
    (void)buffer, (void)size, (void)record;
    return MAX_LIMIT_REACHED;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count)
{
    (void)context, (void)stream;
    *count = 0;
    return 0;
}
