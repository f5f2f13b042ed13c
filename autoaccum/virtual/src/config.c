/* Reads AUTOACCUM_VIRTUAL_* and CUDA_VISIBLE_DEVICES: which devices there are, and which of them are seen. */
#define _GNU_SOURCE
#include "device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char name[128];
    int capability;
    int multiprocessors;
    double watts[2]; /* idle and busy */
} traits;

static traits devices[VG_MAX_DEVICES];
static int visible[VG_MAX_DEVICES];
static int visible_count;
static int trace;

/* Give the index-th of the comma-separated values, or the last one there is. */
static const char *list_item(const char *list, int index, size_t *length)
{
    while (index-- > 0) {
        const char *comma = strchr(list, ',');
        if (!comma)
            break;
        list = comma + 1;
    }
    *length = strcspn(list, ",");
    return list;
}

static int env_item(const char *name, int index, char *out, size_t capacity)
{
    const char *list = getenv(name);
    if (!list || !*list)
        return 0;
    size_t length;
    const char *item = list_item(list, index, &length);
    snprintf(out, capacity, "%.*s", (int)length, item);
    return 1;
}

double vg_env_number(const char *name, int index, double fallback)
{
    char text[64];
    return env_item(name, index, text, sizeof text) ? atof(text) : fallback;
}

uint64_t vg_env_size(const char *name, int index, uint64_t fallback)
{
    char text[64];
    if (!env_item(name, index, text, sizeof text))
        return fallback;
    char *end;
    uint64_t whole = strtoull(text, &end, 10); /* plain bytes stay exact beyond 2^53 */
    if (!*end)
        return whole;
    double value = strtod(text, &end);
    switch (toupper((unsigned char)*end)) {
    case 'K':
        return (uint64_t)(value * (1ull << 10));
    case 'M':
        return (uint64_t)(value * (1ull << 20));
    case 'G':
        return (uint64_t)(value * (1ull << 30));
    case 'T':
        return (uint64_t)(value * (1ull << 40));
    default:
        return (uint64_t)value;
    }
}

int vg_configured_devices(void)
{
    int count = (int)vg_env_number(VG_ENV("DEVICES"), 0, 1);
    if (count < 0)
        return 0;
    return count > VG_MAX_DEVICES ? VG_MAX_DEVICES : count;
}

void vg_uuid(int device, unsigned char out[16])
{
    for (int i = 0; i < 15; i++)
        out[i] = (unsigned char)(0xfa + 37 * i + 91 * device);
    out[15] = (unsigned char)device;
}

void vg_uuid_text(int device, char out[64])
{
    unsigned char u[16];
    vg_uuid(device, u);
    char *end = out + sprintf(out, "GPU-");
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *end++ = '-';
        end += sprintf(end, "%02x", u[i]);
    }
}

/* "0", or a UUID or its beginning: "GPU-fa1f". */
static int find_device(const char *text, int count)
{
    if (isdigit((unsigned char)*text)) {
        int index = atoi(text);
        return index < count ? index : -1;
    }
    for (int device = 0; device < count && !strncmp(text, "GPU-", 4); device++) {
        char uuid[64];
        vg_uuid_text(device, uuid);
        if (!strncasecmp(uuid, text, strlen(text)))
            return device;
    }
    return -1;
}

static void load_visible(int count)
{
    visible_count = 0;
    const char *variable = getenv("CUDA_VISIBLE_DEVICES");
    if (!variable) {
        while (visible_count < count) {
            visible[visible_count] = visible_count;
            visible_count++;
        }
        return;
    }
    char list[1024], *rest;
    snprintf(list, sizeof list, "%s", variable);
    for (char *item = strtok_r(list, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
        int device = find_device(item, count);
        if (device < 0 || visible_count == VG_MAX_DEVICES)
            return; /* as the real driver: what follows an unknown device is hidden too */
        visible[visible_count++] = device;
    }
}

void vg_config_load(void)
{
    trace = (int)vg_env_number(VG_ENV("TRACE"), 0, 0);
    for (int i = 0; i < VG_MAX_DEVICES; i++) {
        if (!env_item(VG_ENV("NAME"), i, devices[i].name, sizeof devices[i].name))
            snprintf(devices[i].name, sizeof devices[i].name, "autoaccum virtual GPU");
        devices[i].capability = (int)(vg_env_number(VG_ENV("CC"), i, 8.0) * 10 + 0.5);
        devices[i].multiprocessors = (int)vg_env_number(VG_ENV("SMS"), i, 108);
        devices[i].watts[0] = vg_env_number(VG_ENV("IDLE_WATTS"), i, 50);
        devices[i].watts[1] = vg_env_number(VG_ENV("BUSY_WATTS"), i, 300);
    }
    load_visible(vg_devices());
}

int vg_visible_devices(void)
{
    vg_start();
    return visible_count;
}

int vg_physical(int ordinal)
{
    vg_start();
    return ordinal >= 0 && ordinal < visible_count ? visible[ordinal] : -1;
}

int vg_ordinal(int device)
{
    for (int i = 0; i < vg_visible_devices(); i++)
        if (visible[i] == device)
            return i;
    return 0;
}

const char *vg_name(int device)
{
    vg_start();
    return devices[device].name;
}

int vg_capability(int device)
{
    vg_start();
    return devices[device].capability;
}

int vg_multiprocessors(int device)
{
    vg_start();
    return devices[device].multiprocessors;
}

double vg_watts(int device, int busy)
{
    vg_start();
    return devices[device].watts[!!busy];
}

int vg_trace(void)
{
    vg_start();
    return trace;
}

int vg_pci_bus(int device)
{
    return device + 1;
}

int vg_stub(const char *name, int *seen, int result)
{
    if (vg_trace() > 1 || (vg_trace() == 1 && !*seen))
        fprintf(stderr, "virtual GPU: stub %s gives %d\n", name, result);
    *seen = 1;
    return result;
}
