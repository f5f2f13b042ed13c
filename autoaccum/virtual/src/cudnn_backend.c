/* libcudnn: the graph interface, through which PyTorch runs convolutions and attention.
   Descriptors are bags of attributes; one engine is always on offer, and its plan asks for the configured
   workspace. */
#include "cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENGINE = 2, ENGINE_CONFIG = 3, HEURISTIC = 4, PLAN = 5, OPERATION_GRAPH = 15 }; /* descriptor types */

enum { /* attributes */
       HEURISTIC_GRAPH = 201,
       HEURISTIC_RESULTS = 202,
       CONFIG_ENGINE = 300,
       CONFIG_KNOBS = 302,
       CONFIG_WORKSPACE = 303,
       CONFIG_SHARED_MEMORY = 304,
       PLAN_CONFIG = 401,
       PLAN_WORKSPACE = 402,
       PLAN_JSON = 405,
       FORWARD_W = 703,
       FORWARD_Y = 705,
       BACKWARD_DATA_W = 709,
       BACKWARD_DATA_DY = 711,
       BACKWARD_FILTER_DW = 715,
       BACKWARD_FILTER_DY = 717,
       GRAPH_OPERATIONS = 801,
       GRAPH_ENGINE_COUNT = 802,
       TENSOR_DIMENSIONS = 902,
       ENGINE_GRAPH = 1300,
       ENGINE_INDEX = 1301,
       ENGINE_KNOBS = 1302,
       ENGINE_NUMERICAL_NOTE = 1303,
       ENGINE_BEHAVIOR_NOTE = 1305,
};

typedef struct attribute {
    int name;
    int type;
    int64_t count;
    void *values;
    struct attribute *next;
} attribute;

typedef struct {
    int type;
    double flops;
    attribute *attributes;
} descriptor;

static size_t size_of(int type)
{
    switch (type) {
    case 2:  /* boolean */
    case 24: /* char */
        return 1;
    case 0:  /* handle */
    case 3:  /* int64 */
    case 5:  /* double */
    case 6:  /* pointer */
    case 15: /* descriptor */
        return 8;
    case 26: /* fraction */
        return 16;
    default: /* an enumeration, int32 or float */
        return 4;
    }
}

static attribute *find(const descriptor *d, int name)
{
    for (attribute *a = d->attributes; a; a = a->next)
        if (a->name == name)
            return a;
    return NULL;
}

static descriptor *find_descriptor(const descriptor *d, int name)
{
    attribute *a = find(d, name);
    return a && a->count > 0 ? *(descriptor **)a->values : NULL;
}

int cudnnBackendCreateDescriptor(int type, descriptor **out)
{
    descriptor *made = calloc(1, 256);
    if (!made)
        return 4;
    made->type = type;
    *out = made;
    return 0;
}

int cudnnBackendInitialize(descriptor *d)
{
    (void)d;
    return 0;
}

int cudnnBackendDestroyDescriptor(descriptor *d)
{
    if (!d)
        return 0;
    for (attribute *a = d->attributes; a;) {
        attribute *next = a->next;
        free(a->values);
        free(a);
        a = next;
    }
    free(d);
    return 0;
}

/* ---- the cost of a convolution, 2 * |y| * |w| / output channels, handed on from the graph to the plan ----
 */

static double elements(const descriptor *t, double *first)
{
    attribute *a = find(t, TENSOR_DIMENSIONS);
    if (!a || a->count < 1)
        return 0;
    const int64_t *sizes = a->values;
    double count = 1;
    for (int64_t i = 0; i < a->count; i++)
        count *= (double)sizes[i];
    *first = (double)sizes[0];
    return count;
}

static double convolution_flops(const descriptor *operation)
{
    static const int pairs[][2] = {
        { FORWARD_W, FORWARD_Y },
        { BACKWARD_DATA_W, BACKWARD_DATA_DY },
        { BACKWARD_FILTER_DW, BACKWARD_FILTER_DY },
    };
    for (int i = 0; i < 3; i++) {
        descriptor *w = find_descriptor(operation, pairs[i][0]), *y = find_descriptor(operation, pairs[i][1]);
        if (!w || !y)
            continue;
        double channels = 1, batch = 1;
        double weights = elements(w, &channels);
        return 2 * elements(y, &batch) * weights / (channels > 0 ? channels : 1);
    }
    return 0;
}

static double graph_flops(const descriptor *graph)
{
    double flops = 0;
    attribute *a = find(graph, GRAPH_OPERATIONS);
    for (int64_t i = 0; a && i < a->count; i++)
        flops += convolution_flops(((descriptor **)a->values)[i]);
    return flops;
}

int cudnnBackendFinalize(descriptor *d)
{
    static const int sources[][2] = {
        { HEURISTIC, HEURISTIC_GRAPH },
        { ENGINE, ENGINE_GRAPH },
        { ENGINE_CONFIG, CONFIG_ENGINE },
        { PLAN, PLAN_CONFIG },
    };
    if (d->type == OPERATION_GRAPH)
        d->flops = graph_flops(d);
    for (int i = 0; i < 4; i++) {
        descriptor *source = d->type == sources[i][0] ? find_descriptor(d, sources[i][1]) : NULL;
        if (source)
            d->flops = source->flops;
    }
    return 0;
}

int cudnnBackendExecute(cudnn_handle *handle, descriptor *plan, descriptor *pack)
{
    (void)pack;
    vg_compute(vg_stream_of(handle->stream, vg_current_ready()), plan->flops);
    return 0;
}

/* ---- attributes ---- */

int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count, const void *values)
{
    attribute *a = find(d, name);
    if (!a) {
        a = calloc(1, sizeof *a);
        if (!a)
            return 4;
        a->name = name;
        a->next = d->attributes;
        d->attributes = a;
    }
    size_t size = size_of(type) * (size_t)(count > 0 ? count : 0);
    free(a->values);
    a->values = malloc(size + 16);
    a->type = type;
    a->count = count;
    if (a->values && values)
        memcpy(a->values, values, size);
    return 0;
}

static int give_int64(int64_t *count, void *out, int64_t requested, int64_t value)
{
    *count = 1;
    if (out && requested > 0)
        *(int64_t *)out = value;
    return 0;
}

static int give_stored(const attribute *a, int64_t requested, int64_t *count, void *out)
{
    *count = a ? a->count : 0;
    if (a && out && requested > 0)
        memcpy(out, a->values, size_of(a->type) * (size_t)(requested < a->count ? requested : a->count));
    return 0;
}

int cudnnBackendGetAttribute(const descriptor *d, int name, int type, int64_t requested, int64_t *count,
                             void *out)
{
    static const char empty_json[] = "{}";
    int64_t unused;
    const attribute *stored = find(d, name);
    if (!count)
        count = &unused;
    if (vg_trace() > 1)
        fprintf(stderr, "virtual GPU: cuDNN descriptor %d is asked for %d of type %d\n", d->type, name, type);
    switch (name) {
    case HEURISTIC_RESULTS: /* the caller brings its own, empty engine configurations */
        *count = 1;
        if (requested > 0 && out && *(descriptor **)out)
            (*(descriptor **)out)->flops = d->flops;
        return 0;
    case CONFIG_ENGINE:
        if (stored)
            return give_stored(stored, requested, count, out);
        *count = 1; /* the caller brings an empty engine too */
        return 0;
    case PLAN_WORKSPACE:
    case CONFIG_WORKSPACE:
        return give_int64(count, out, requested, (int64_t)vg_cudnn_workspace());
    case ENGINE_INDEX:
    case GRAPH_ENGINE_COUNT:
        if (stored)
            return give_stored(stored, requested, count, out);
        return give_int64(count, out, requested, name == GRAPH_ENGINE_COUNT);
    case CONFIG_SHARED_MEMORY:
        *count = 1;
        if (out && requested > 0)
            *(int32_t *)out = 0;
        return 0;
    case ENGINE_NUMERICAL_NOTE:
    case ENGINE_BEHAVIOR_NOTE:
    case ENGINE_KNOBS:
    case CONFIG_KNOBS:
        *count = 0;
        return 0;
    case PLAN_JSON:
        *count = sizeof empty_json;
        if (out && requested >= (int64_t)sizeof empty_json)
            memcpy(out, empty_json, sizeof empty_json);
        return 0;
    default:
        return give_stored(stored, requested, count, out);
    }
}
