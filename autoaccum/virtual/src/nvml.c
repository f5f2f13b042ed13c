/* libnvidia-ml: NVML over the same account as CUDA, so that its figures agree with mem_get_info and see
   everybody.

   AUTOACCUM_VIRTUAL_NVML makes it fail in the ways that real machines do:
     missing       nvmlInit says that the library was not found
     no-driver     nvmlInit says that the driver is not loaded
     denied        memory and processes may not be read (containers, MIG)
     no-figures    processes are listed, their memory is "not available" (Windows' WDDM, some containers)
     not-listed    this process is not in the list (another pid namespace)
     no-energy     the energy is not counted, only the power is known (before Volta)
     no-power      neither is known (MIG) */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIBRARY_NOT_FOUND = 12,
};

#define FIRST_HANDLE 0x2000
#define OTHER_TENANT_PID 1
#define NOT_AVAILABLE (~0ull) /* NVML_VALUE_NOT_AVAILABLE */
#define ALL_OF_IT (~0u)       /* no MIG instance */

typedef void *handle;
typedef unsigned long long u64;

static int initialized;

static int behaves(const char *way)
{
    const char *chosen = getenv(VG_ENV("NVML"));
    return chosen && !strcmp(chosen, way);
}

static handle handle_of(int device)
{
    return (handle)(uintptr_t)(FIRST_HANDLE + device);
}

static int resolve(handle h, int *device)
{
    if (!initialized)
        return UNINITIALIZED;
    *device = (int)((intptr_t)h - FIRST_HANDLE);
    return *device >= 0 && *device < vg_devices() ? OK : INVALID_ARGUMENT;
}

#define RESOLVE(h)                        \
    int device;                           \
    do {                                  \
        int status = resolve(h, &device); \
        if (status)                       \
            return status;                \
    } while (0)

/* ---- the library and the system ---- */

int nvmlInit_v2(void)
{
    if (behaves("missing"))
        return LIBRARY_NOT_FOUND;
    if (behaves("no-driver"))
        return DRIVER_NOT_LOADED;
    initialized = 1;
    return OK;
}

int nvmlInit(void)
{
    return nvmlInit_v2();
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int status)
{
    switch (status) {
    case OK:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case LIBRARY_NOT_FOUND:
        return "NVML Shared Library Not Found";
    default:
        return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned capacity)
{
    snprintf(out, capacity, "999.0"); /* newer than any */
    return OK;
}

int nvmlSystemGetNVMLVersion(char *out, unsigned capacity)
{
    snprintf(out, capacity, "%d.999.0", VG_CUDA_VERSION / 1000);
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = VG_CUDA_VERSION;
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned capacity)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return NOT_FOUND;
    if (!fgets(out, (int)capacity, file))
        *out = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    return OK;
}

/* ---- finding a device ---- */

int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!initialized)
        return UNINITIALIZED;
    *count = (unsigned)vg_devices();
    return OK;
}

int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *h)
{
    if (!initialized)
        return UNINITIALIZED;
    if (index >= (unsigned)vg_devices())
        return INVALID_ARGUMENT;
    *h = handle_of((int)index);
    return OK;
}

int nvmlDeviceGetHandleByIndex(unsigned index, handle *h)
{
    return nvmlDeviceGetHandleByIndex_v2(index, h);
}

int nvmlDeviceGetHandleByUUID(const char *wanted, handle *h)
{
    if (!initialized)
        return UNINITIALIZED;
    for (int device = 0; device < vg_devices(); device++) {
        char uuid[64];
        vg_uuid_text(device, uuid);
        if (strcasecmp(uuid, wanted) && strcasecmp(uuid + strlen("GPU-"), wanted))
            continue;
        *h = handle_of(device);
        return OK;
    }
    return NOT_FOUND;
}

static void pci_text(int device, char out[32])
{
    snprintf(out, 32, "%08X:%02X:00.0", 0, vg_pci_bus(device));
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, handle *h)
{
    if (!initialized)
        return UNINITIALIZED;
    for (int device = 0; device < vg_devices(); device++) {
        char text[32]; /* with a domain of 8 digits; also known with 4 and with none */
        pci_text(device, text);
        if (strcasecmp(text, wanted) && strcasecmp(text + 4, wanted) && strcasecmp(text + 9, wanted))
            continue;
        *h = handle_of(device);
        return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId(const char *wanted, handle *h)
{
    return nvmlDeviceGetHandleByPciBusId_v2(wanted, h);
}

/* ---- what a device is ---- */

int nvmlDeviceGetIndex(handle h, unsigned *index)
{
    RESOLVE(h);
    *index = (unsigned)device;
    return OK;
}

int nvmlDeviceGetMinorNumber(handle h, unsigned *number)
{
    return nvmlDeviceGetIndex(h, number);
}

int nvmlDeviceGetName(handle h, char *out, unsigned capacity)
{
    RESOLVE(h);
    snprintf(out, capacity, "%s", vg_name(device));
    return OK;
}

int nvmlDeviceGetUUID(handle h, char *out, unsigned capacity)
{
    RESOLVE(h);
    char uuid[64];
    vg_uuid_text(device, uuid);
    if (capacity <= strlen(uuid))
        return INSUFFICIENT_SIZE;
    snprintf(out, capacity, "%s", uuid);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(handle h, int *major, int *minor)
{
    RESOLVE(h);
    *major = vg_capability(device) / 10;
    *minor = vg_capability(device) % 10;
    return OK;
}

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

int nvmlDeviceGetPciInfo_v3(handle h, pci_info *info)
{
    RESOLVE(h);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)vg_pci_bus(device);
    info->device_id = 0x20b010de; /* an A100 */
    pci_text(device, info->bus_id);
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%.15s", info->bus_id + 4);
    return OK;
}

int nvmlDeviceGetPciInfo_v2(handle h, pci_info *info)
{
    return nvmlDeviceGetPciInfo_v3(h, info);
}

int nvmlDeviceGetPciInfo(handle h, pci_info *info)
{
    return nvmlDeviceGetPciInfo_v3(h, info);
}

/* ---- memory ---- */

typedef struct {
    u64 total, free, used;
} memory_v1;

typedef struct {
    unsigned version;
    u64 total, reserved, free, used;
} memory_v2;

int nvmlDeviceGetMemoryInfo(handle h, memory_v1 *memory)
{
    RESOLVE(h);
    if (behaves("denied"))
        return NO_PERMISSION;
    u64 total = vg_total(device), used = vg_used(device);
    memory->total = total;
    memory->used = used < total ? used : total;
    memory->free = total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(handle h, memory_v2 *memory)
{
    memory_v1 plain;
    int status = nvmlDeviceGetMemoryInfo(h, &plain);
    if (status)
        return status;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return OK;
}

/* ---- processes ---- */

typedef struct {
    unsigned pid;
    u64 used;
} process_v1;

typedef struct {
    unsigned pid;
    u64 used;
    unsigned gpu_instance, compute_instance;
} process_v3;

/* Everybody on the device, and the other tenant, who is given the pid of init. */
static int list_processes(int device, process_v3 list[VG_MAX_PROCESSES + 1])
{
    int pids[VG_MAX_PROCESSES];
    uint64_t used[VG_MAX_PROCESSES];
    int known = vg_processes(device, pids, used, VG_MAX_PROCESSES), count = 0;
    for (int i = 0; i < known; i++) {
        if (behaves("not-listed") && pids[i] == getpid())
            continue;
        list[count++] = (process_v3){ (unsigned)pids[i], used[i], ALL_OF_IT, ALL_OF_IT };
    }
    if (vg_other(device))
        list[count++] = (process_v3){ OTHER_TENANT_PID, vg_other(device), ALL_OF_IT, ALL_OF_IT };
    for (int i = 0; i < count && behaves("no-figures"); i++)
        list[i].used = NOT_AVAILABLE;
    return count;
}

static int give_processes(handle h, unsigned *count, process_v1 *v1, process_v3 *v3)
{
    RESOLVE(h);
    if (behaves("denied"))
        return NO_PERMISSION;
    process_v3 list[VG_MAX_PROCESSES + 1];
    unsigned capacity = *count;
    *count = (unsigned)list_processes(device, list);
    if (*count == 0)
        return OK;
    if (capacity < *count || (!v1 && !v3))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) {
        if (v3)
            v3[i] = list[i];
        else
            v1[i] = (process_v1){ list[i].pid, list[i].used };
    }
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses(handle h, unsigned *count, process_v1 *out)
{
    return give_processes(h, count, out, NULL);
}

int nvmlDeviceGetComputeRunningProcesses_v2(handle h, unsigned *count, process_v3 *out)
{
    return give_processes(h, count, NULL, out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle h, unsigned *count, process_v3 *out)
{
    return give_processes(h, count, NULL, out);
}

static int no_processes(handle h, unsigned *count)
{
    RESOLVE(h);
    *count = 0;
    return OK;
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(handle h, unsigned *count, process_v3 *out)
{
    (void)out;
    return no_processes(h, count);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(handle h, unsigned *count, process_v3 *out)
{
    (void)out;
    return no_processes(h, count);
}

/* ---- sensors: what follows from the simulated time ---- */

typedef struct {
    unsigned gpu, memory;
} utilization;

int nvmlDeviceGetUtilizationRates(handle h, utilization *out)
{
    RESOLVE(h);
    uint64_t idle, busy;
    vg_times(device, &idle, &busy);
    u64 total = vg_total(device);
    out->gpu = busy ? (unsigned)(100.0 * (double)busy / (double)(idle + busy)) : 0;
    out->memory = total ? (unsigned)(100.0 * (double)vg_used(device) / (double)total) : 0;
    return OK;
}

int nvmlDeviceGetPowerUsage(handle h, unsigned *milliwatts)
{
    RESOLVE(h);
    if (behaves("no-power"))
        return NOT_SUPPORTED;
    *milliwatts = (unsigned)(vg_watts(device, vg_is_busy(device)) * 1e3);
    return OK;
}

/* The power over the time until now: what is queued and not yet done costs nothing yet. */
int nvmlDeviceGetTotalEnergyConsumption(handle h, u64 *millijoules)
{
    RESOLVE(h);
    if (behaves("no-power") || behaves("no-energy"))
        return NOT_SUPPORTED;
    uint64_t idle, busy;
    vg_times(device, &idle, &busy);
    double joules = vg_watts(device, 0) * (double)idle / 1e9 + vg_watts(device, 1) * (double)busy / 1e9;
    *millijoules = (u64)(joules * 1e3);
    return OK;
}

/* ---- sensors: constants, because nothing runs ---- */

static int constant(handle h, unsigned *out, unsigned value)
{
    RESOLVE(h);
    *out = value;
    return OK;
}

int nvmlDeviceGetTemperature(handle h, int sensor, unsigned *celsius)
{
    (void)sensor;
    return constant(h, celsius, 40);
}

int nvmlDeviceGetEnforcedPowerLimit(handle h, unsigned *milliwatts)
{
    return constant(h, milliwatts, 400000);
}

int nvmlDeviceGetClockInfo(handle h, int domain, unsigned *mhz)
{
    (void)domain;
    return constant(h, mhz, 1410);
}

int nvmlDeviceGetMaxClockInfo(handle h, int domain, unsigned *mhz)
{
    (void)domain;
    return constant(h, mhz, 1410);
}

int nvmlDeviceGetPersistenceMode(handle h, unsigned *mode)
{
    return constant(h, mode, 1);
}

int nvmlDeviceGetComputeMode(handle h, unsigned *mode)
{
    return constant(h, mode, 0);
}
