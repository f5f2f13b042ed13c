/* The virtual device, as every library of this folder sees it: what it is, what it holds, what time it is
   there.

   Implemented by config.c, state.c, memory.c, clock.c and leave.c, which together make
   libautoaccum_virtual.so. A device number is physical (as NVML counts) unless it is called `ordinal` (as
   CUDA_VISIBLE_DEVICES renumbers). */
#ifndef AUTOACCUM_VIRTUAL_DEVICE_H
#define AUTOACCUM_VIRTUAL_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define VG_MAX_DEVICES 16
#define VG_MAX_PROCESSES 128
#define VG_PAGE ((size_t)2 << 20) /* a real driver hands out device memory in pages of 2 MiB */
#define VG_ENV(name) "AUTOACCUM_VIRTUAL_" name

/* ---- config.c: what the environment asks for ---- */
void vg_config_load(void); /* once, from vg_start() */
int vg_configured_devices(void);
int vg_visible_devices(void);
int vg_physical(int ordinal); /* or -1 */
int vg_ordinal(int device);   /* or 0 where the device is hidden */
const char *vg_name(int device);
int vg_capability(int device); /* 80 for 8.0 */
int vg_multiprocessors(int device);
double vg_watts(int device, int busy);
int vg_trace(void);
void vg_uuid(int device, unsigned char out[16]);
void vg_uuid_text(int device, char out[64]);
int vg_pci_bus(int device);
double vg_env_number(const char *name, int index, double fallback);
uint64_t vg_env_size(const char *name, int index, uint64_t fallback); /* "24G", or one per device: "24G,8G" */

/* ---- state.c: who holds how much ---- */
void vg_start(void); /* safe to call from everywhere, works once */
int vg_devices(void);
uint64_t vg_total(int device);
uint64_t vg_used(int device);  /* everybody: contexts, allocations and the other tenant */
uint64_t vg_other(int device); /* the other tenant */
void vg_make_context(int device);
int vg_has_context(int device);
int vg_charge(int device, uint64_t bytes); /* 0, or -1 when it does not fit */
void vg_release(int device, uint64_t bytes);
int vg_processes(int device, int *pids, uint64_t *used, int capacity);
void vg_forget_process(void); /* at exit: give everything back */
void vg_count_busy(int device, uint64_t until);
int vg_is_busy(int device); /* whoever's work it is */
void vg_times(int device, uint64_t *idle_ns, uint64_t *busy_ns); /* since the state was made, until now */

/* ---- memory.c: blocks and copies ---- */
enum vg_result { VG_OK, VG_FULL, VG_REFUSED }; /* refused: by the host, which has no address space left */
enum vg_kind { VG_HOST = 1, VG_DEVICE = 2, VG_MANAGED = 3 };

typedef struct {
    uintptr_t address;
    size_t size;
    size_t charged;
    int device;
    enum vg_kind kind;
} vg_block;

void *vg_map_aligned(size_t size, int protection); /* host address space, aligned to VG_PAGE */
enum vg_result vg_device_alloc(int device, size_t size, void **out);
int vg_device_free(void *pointer); /* 0, or -1 for an unknown pointer */
void *vg_host_alloc(size_t size, enum vg_kind kind, int device);
int vg_host_free(void *pointer);
void vg_blocks_add(void *pointer, size_t size, size_t charged, int device, enum vg_kind kind);
int vg_blocks_remove(const void *pointer, vg_block *out);
int vg_blocks_find(const void *pointer, vg_block *out); /* the block that contains it: 0, or -1 */
void vg_copy(void *destination, const void *source, size_t size);
void vg_set(void *destination, int value, size_t size);
void vg_kernel_ran(void); /* from now on, what the device holds is no longer what the host wrote */

/* ---- clock.c: each stream is a queue of work that takes time ---- */
typedef struct vg_stream {
    int device;
    int priority;
    unsigned flags;
    int capturing;
    uint64_t capture_id;
    uint64_t busy_until;
    void *graph;
} vg_stream;

void vg_clock_load(void); /* once, from vg_start() */
uint64_t vg_now(void);
vg_stream *vg_stream_of(void *stream, int device); /* the special handles 0, 1, 2 are the default stream */
void vg_launch(vg_stream *stream, uint64_t threads);
void vg_compute(vg_stream *stream, double flops);
void vg_delay(vg_stream *stream, double ns);
void vg_transfer(vg_stream *stream, size_t bytes);
void vg_wait_until(uint64_t time);
void vg_wait_device(int device);

/* ---- leave.c: a quiet end of the process ---- */
void vg_leave_prepare(void); /* once, from vg_start() */

/* ---- the calling thread ---- */
extern __thread int vg_current_ordinal;
int vg_current(void);       /* the current physical device */
int vg_current_ready(void); /* the same, with a context made on it */

/* ---- what a generated stub calls ---- */
int vg_stub(const char *name, int *seen, int result);

#endif
