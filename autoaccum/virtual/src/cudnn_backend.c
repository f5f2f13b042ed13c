/* libcudnn: the graph interface, through which PyTorch runs convolutions and attention.
   Descriptors are bags of attributes; an engine is always on offer, and its plan asks for a
   workspace as configured. */
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
       BACKWARD_FILTER_X = 716,
       BACKWARD_FILTER_DY = 717,
       GRAPH_OPERATIONS = 801,
       GRAPH_ENGINE_COUNT = 802,
       TENSOR_TYPE = 901,
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

enum { LAST_RESORT_NS = 1000000 }; /* more than the host takes between two events */

typedef struct {
    int type;
    double flops;
    double workspace;
    int last_resort; /* of an engine that does without the room that it would like */
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

/* ---- the workspace of a convolution ----

   Of the algorithms that cuDNN picks on a real card, those for the gradient of a kernel's weights want input and output
   in another layout, and so need room in proportion to both; pointwise kernels and narrow groups do without. The share
   is a setting, and docs/rehearse.md says what it was found from. */

enum { WIDE = 16 }; /* channels: a group of more is treated as a convolution without groups is */

static double bytes(const descriptor *t)
{
    double first;
    const attribute *type = find(t, TENSOR_TYPE);
    int kind = type ? *(const int *)type->values : CUDNN_DATA_FLOAT;
    double each = kind == CUDNN_DATA_FLOAT ? 4 : kind == CUDNN_DATA_DOUBLE ? 8 : 2;
    return each * elements(t, &first);
}

static int wants_room(const descriptor *weights, const descriptor *input)
{
    const attribute *w = find(weights, TENSOR_DIMENSIONS), *x = find(input, TENSOR_DIMENSIONS);
    if (!w || !x || w->count < 3 || x->count < 2)
        return 0;
    const int64_t *kernel = w->values, *sizes = x->values;
    int64_t area = 1;
    for (int64_t i = 2; i < w->count; i++)
        area *= kernel[i];
    int grouped = sizes[1] != kernel[1];
    return area > 1 && (!grouped || kernel[1] > WIDE);
}

static double convolution_workspace(const descriptor *operation)
{
    const descriptor *w = find_descriptor(operation, BACKWARD_FILTER_DW);
    const descriptor *x = find_descriptor(operation, BACKWARD_FILTER_X);
    const descriptor *y = find_descriptor(operation, BACKWARD_FILTER_DY);
    if (!w || !x || !y || !wants_room(w, x))
        return 0;
    return vg_env_number(VG_ENV("CUDNN_WORKSPACE_SHARE"), 0, 0) * (bytes(x) + bytes(y));
}

static double graph_workspace(const descriptor *graph)
{
    double workspace = 0;
    attribute *a = find(graph, GRAPH_OPERATIONS);
    for (int64_t i = 0; a && i < a->count; i++)
        workspace += convolution_workspace(((descriptor **)a->values)[i]);
    return workspace;
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
        d->flops = graph_flops(d), d->workspace = (double)vg_cudnn_workspace() + graph_workspace(d);
    for (int i = 0; i < 4; i++) {
        descriptor *source = d->type == sources[i][0] ? find_descriptor(d, sources[i][1]) : NULL;
        if (source)
            d->flops = source->flops, d->workspace = source->workspace, d->last_resort = source->last_resort;
    }
    return 0;
}

int cudnnBackendExecute(cudnn_handle *handle, descriptor *plan, descriptor *pack)
{
    (void)pack;
    vg_stream *stream = vg_stream_of(handle->stream, vg_current_ready());
    vg_compute(stream, plan->flops);
    if (plan->last_resort)
        vg_delay(stream, LAST_RESORT_NS);
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

/* One engine, and where it wants room beyond what is configured, another that does without: PyTorch takes the first
   that it finds the memory for, or with cudnn.benchmark the fastest, which is the first too. */
static int offer_engines(const descriptor *heuristic, int64_t requested, int64_t *count, descriptor **out)
{
    double least = (double)vg_cudnn_workspace();
    int64_t engines = heuristic->workspace > least ? 2 : 1;
    *count = requested > 0 && requested < engines ? requested : engines;
    for (int64_t i = 0; out && i < requested && i < engines; i++)
        if (out[i])
            out[i]->flops = heuristic->flops, out[i]->workspace = i ? least : heuristic->workspace,
            out[i]->last_resort = i > 0;
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
        return offer_engines(d, requested, count, out);
    case CONFIG_ENGINE:
        if (stored)
            return give_stored(stored, requested, count, out);
        *count = 1; /* the caller brings an empty engine too */
        return 0;
    case PLAN_WORKSPACE:
    case CONFIG_WORKSPACE:
        return give_int64(count, out, requested, (int64_t)d->workspace);
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
