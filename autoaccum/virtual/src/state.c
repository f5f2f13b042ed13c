/* The account of every device: its size, who holds how many bytes, and the knobs that tests turn.

   It lives in a file shared between processes when AUTOACCUM_VIRTUAL_STATE names one, so that they compete
   for the same device and NVML shows them to each other; otherwise in memory of this process alone. */
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x3176757061757632ull /* changes with the layout below */
#define CANNOT_START 70             /* EX_SOFTWARE; atexit() handlers would need the state that is missing */
#define EXPORTED __attribute__((visibility("default")))

typedef struct {
    int32_t pid;      /* 0: a free slot */
    uint64_t started; /* tells a process from a later one with the same pid */
    uint64_t allocated[VG_MAX_DEVICES];
    uint64_t context[VG_MAX_DEVICES];
    uint8_t has_context[VG_MAX_DEVICES];
} process;

typedef struct {
    uint64_t magic;
    pthread_mutex_t mutex;
    int32_t devices;
    uint64_t total[VG_MAX_DEVICES];
    uint64_t other[VG_MAX_DEVICES];
    uint64_t busy_ns[VG_MAX_DEVICES];    /* what is queued is in it already */
    uint64_t busy_until[VG_MAX_DEVICES]; /* the end of what is queued, by anybody */
    uint64_t made_at;
    process processes[VG_MAX_PROCESSES];
} account;

static account *state;
static process *self;
static pid_t owner;
static int fail_after = -1;

EXPORTED __thread int vg_current_ordinal;

/* ---- the lock; a holder that was killed leaves it usable ---- */

static void lock(void)
{
    if (pthread_mutex_lock(&state->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&state->mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&state->mutex);
}

static void make_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* ---- processes: a slot each, taken back from the dead ---- */

/* Is it alive (a zombie is not), and since when? Field 3 of /proc/PID/stat is its state, field 22 its start.
 */
static int is_alive(int pid, uint64_t *started)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return 0;
    text[size] = 0;
    char *field = strrchr(text, ')'); /* field 2, the name, may hold anything but this last bracket */
    if (!field || !field[1])
        return 0;
    field += 2;
    char status = *field;
    for (int i = 3; i < 22 && field; i++) {
        field = strchr(field, ' ');
        if (field)
            field++;
    }
    *started = field ? strtoull(field, NULL, 10) : 0;
    return status != 'Z' && status != 'X';
}

static void reap_locked(void)
{
    for (int i = 0; i < VG_MAX_PROCESSES; i++) {
        process *p = &state->processes[i];
        uint64_t started;
        if (!p->pid || p->pid == owner)
            continue;
        if (!is_alive(p->pid, &started) || started != p->started)
            memset(p, 0, sizeof *p);
    }
}

static process *free_slot_locked(void)
{
    for (int i = 0; i < VG_MAX_PROCESSES; i++)
        if (!state->processes[i].pid)
            return &state->processes[i];
    return NULL;
}

static void take_slot_locked(void)
{
    if (self)
        return;
    self = free_slot_locked();
    if (!self) {
        reap_locked();
        self = free_slot_locked();
    }
    if (!self) {
        fprintf(stderr, "virtual GPU: more than %d processes share this device\n", VG_MAX_PROCESSES);
        abort();
    }
    memset(self, 0, sizeof *self);
    is_alive(owner, &self->started);
    self->pid = owner;
}

static int any_process_locked(void)
{
    for (int i = 0; i < VG_MAX_PROCESSES; i++)
        if (state->processes[i].pid)
            return 1;
    return 0;
}

void vg_forget_process(void)
{
    if (!state || !self || getpid() != owner)
        return;
    lock();
    memset(self, 0, sizeof *self);
    self = NULL;
    unlock();
}

static void after_fork_in_child(void)
{
    owner = getpid();
    self = NULL;
}

/* ---- attaching ---- */

static int open_state_file(void)
{
    const char *path = getenv(VG_ENV("STATE"));
    if (!path || !*path)
        return -1;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) {
        fprintf(stderr, "virtual GPU: cannot open the state file %s: %s\n", path, strerror(errno));
        _exit(CANNOT_START);
    }
    return file;
}

static account *map_state(int file)
{
    int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    if (file >= 0) {
        struct stat status;
        flock(file, LOCK_EX);
        fstat(file, &status);
        if (status.st_size != sizeof(account) && (ftruncate(file, 0) || ftruncate(file, sizeof(account)))) {
            perror("virtual GPU: cannot size the state file");
            _exit(CANNOT_START);
        }
    }
    account *mapped = mmap(NULL, sizeof(account), PROT_READ | PROT_WRITE, flags, file, 0);
    if (mapped == MAP_FAILED) {
        perror("virtual GPU: cannot map its state");
        _exit(CANNOT_START);
    }
    return mapped;
}

/* The file may outlive its processes: the sizes that this process was given win, its tenant only where
   nobody is there. */
static void attach(void)
{
    int file = open_state_file();
    state = map_state(file);
    int fresh = state->magic != MAGIC || state->made_at > vg_now(); /* the latter: before the host rebooted */
    if (fresh) {
        memset(state, 0, sizeof *state);
        make_mutex(&state->mutex);
        state->made_at = vg_now();
        state->magic = MAGIC;
    }
    lock();
    reap_locked();
    int alone = !any_process_locked();
    if (fresh || getenv(VG_ENV("DEVICES")))
        state->devices = vg_configured_devices();
    for (int i = 0; i < VG_MAX_DEVICES; i++) {
        if (fresh || getenv(VG_ENV("TOTAL_BYTES")))
            state->total[i] = vg_env_size(VG_ENV("TOTAL_BYTES"), i, 24ull << 30);
        if (fresh || (alone && getenv(VG_ENV("OTHER_BYTES"))))
            state->other[i] = vg_env_size(VG_ENV("OTHER_BYTES"), i, 0);
    }
    unlock();
    if (file >= 0) {
        flock(file, LOCK_UN);
        close(file);
    }
}

static void start(void);

void vg_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static __thread int starting; /* start() itself asks for devices */
    if (starting)
        return;
    starting = 1;
    pthread_once(&once, start);
    starting = 0;
}

static void start(void)
{
    owner = getpid();
    attach();
    vg_config_load();
    vg_clock_load();
    vg_leave_prepare();
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* ---- the account ---- */

static uint64_t used_locked(int device)
{
    uint64_t used = state->other[device];
    for (int i = 0; i < VG_MAX_PROCESSES; i++)
        if (state->processes[i].pid)
            used += state->processes[i].allocated[device] + state->processes[i].context[device];
    return used;
}

int vg_devices(void)
{
    vg_start();
    return state->devices;
}

uint64_t vg_total(int device)
{
    vg_start();
    return state->total[device];
}

uint64_t vg_other(int device)
{
    vg_start();
    return state->other[device];
}

uint64_t vg_used(int device)
{
    vg_start();
    lock();
    reap_locked();
    uint64_t used = used_locked(device);
    unlock();
    return used;
}

int vg_has_context(int device)
{
    vg_start();
    return device >= 0 && self && self->has_context[device];
}

void vg_make_context(int device)
{
    vg_start();
    if (device < 0 || device >= state->devices || vg_has_context(device))
        return;
    lock();
    take_slot_locked();
    if (!self->has_context[device]) {
        self->context[device] = vg_env_size(VG_ENV("CONTEXT_BYTES"), device, 256ull << 20);
        self->has_context[device] = 1;
    }
    unlock();
}

static int fits_locked(int device, uint64_t bytes)
{
    if (used_locked(device) + bytes <= state->total[device])
        return 1;
    reap_locked();
    return used_locked(device) + bytes <= state->total[device];
}

int vg_charge(int device, uint64_t bytes)
{
    vg_start();
    lock();
    take_slot_locked();
    int injected = fail_after >= 0 && fail_after-- == 0;
    int fits = !injected && fits_locked(device, bytes);
    if (fits)
        self->allocated[device] += bytes;
    unlock();
    return fits ? 0 : -1;
}

void vg_release(int device, uint64_t bytes)
{
    vg_start();
    lock();
    take_slot_locked();
    uint64_t held = self->allocated[device];
    self->allocated[device] = bytes < held ? held - bytes : 0;
    unlock();
}

int vg_processes(int device, int *pids, uint64_t *used, int capacity)
{
    vg_start();
    lock();
    reap_locked();
    int count = 0;
    for (int i = 0; i < VG_MAX_PROCESSES && count < capacity; i++) {
        process *p = &state->processes[i];
        if (!p->pid || !p->has_context[device])
            continue;
        pids[count] = p->pid;
        used[count] = p->allocated[device] + p->context[device];
        count++;
    }
    unlock();
    return count;
}

/* A device is busy from when something is queued on it until all of it is done: streams that overlap count
   once, and a stream that waits for another device counts as busy. So what is yet to be done is always one
   piece, from now to busy_until, and can be taken off again. */
void vg_count_busy(int device, uint64_t until)
{
    lock();
    uint64_t now = vg_now(), *end = &state->busy_until[device], from = *end > now ? *end : now;
    if (until > from) {
        state->busy_ns[device] += until - from;
        *end = until;
    }
    unlock();
}

int vg_is_busy(int device)
{
    vg_start();
    lock();
    int busy = state->busy_until[device] > vg_now();
    unlock();
    return busy;
}

void vg_times(int device, uint64_t *idle_ns, uint64_t *busy_ns)
{
    vg_start();
    lock();
    uint64_t now = vg_now(), end = state->busy_until[device];
    *busy_ns = state->busy_ns[device] - (end > now ? end - now : 0);
    *idle_ns = now - state->made_at - *busy_ns;
    unlock();
}

/* ---- the calling thread's device ---- */

int vg_current(void)
{
    int device = vg_physical(vg_current_ordinal);
    return device < 0 ? 0 : device;
}

int vg_current_ready(void)
{
    int device = vg_current();
    vg_make_context(device);
    return device;
}

/* ---- knobs, called from control.py ---- */

EXPORTED void autoaccum_virtual_set_other_bytes(int device, uint64_t bytes)
{
    vg_start();
    lock();
    state->other[device] = bytes;
    unlock();
}

EXPORTED void autoaccum_virtual_set_total_bytes(int device, uint64_t bytes)
{
    vg_start();
    lock();
    state->total[device] = bytes;
    unlock();
}

EXPORTED void autoaccum_virtual_fail_after(int allocations)
{
    vg_start();
    lock();
    fail_after = allocations;
    unlock();
}

EXPORTED uint64_t autoaccum_virtual_used_bytes(int device)
{
    return vg_used(device);
}

EXPORTED int autoaccum_virtual_devices(void)
{
    return vg_devices();
}
