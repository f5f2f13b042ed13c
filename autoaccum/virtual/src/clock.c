/* Simulated time: each stream is a queue in order, and events and synchronisation follow it.
   With every cost at zero, the default, work is done as soon as it is asked for. */
#define _GNU_SOURCE
#include "device.h"

#include <time.h>

#define SLEEP_ABOVE_NS 60000u /* shorter waits spin: a sleep would overshoot them */

static vg_stream default_streams[VG_MAX_DEVICES];
static uint64_t device_busy_until[VG_MAX_DEVICES];
static double kernel_ns;
static double thread_ns;
static double flops_per_ns;
static double bytes_per_ns;

void vg_clock_load(void)
{
    kernel_ns = vg_env_number(VG_ENV("KERNEL_NS"), 0, 0);
    thread_ns = vg_env_number(VG_ENV("THREAD_NS"), 0, 0);
    flops_per_ns = vg_env_number(VG_ENV("GFLOPS"), 0, 0);
    bytes_per_ns = vg_env_number(VG_ENV("COPY_GBPS"), 0, 0);
    for (int i = 0; i < VG_MAX_DEVICES; i++)
        default_streams[i].device = i;
}

uint64_t vg_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

vg_stream *vg_stream_of(void *stream, int device)
{
    return (uintptr_t)stream > 2 ? stream : &default_streams[device];
}

static void enqueue(vg_stream *stream, double ns)
{
    if (ns <= 0 || stream->capturing)
        return;
    uint64_t now = vg_now();
    if (stream->busy_until < now)
        stream->busy_until = now;
    stream->busy_until += (uint64_t)ns;
    vg_count_busy(stream->device, stream->busy_until);
    if (device_busy_until[stream->device] < stream->busy_until)
        device_busy_until[stream->device] = stream->busy_until;
}

void vg_launch(vg_stream *stream, uint64_t threads)
{
    vg_kernel_ran();
    enqueue(stream, kernel_ns + thread_ns * (double)threads);
}

void vg_compute(vg_stream *stream, double flops)
{
    vg_kernel_ran();
    enqueue(stream, kernel_ns + (flops_per_ns > 0 ? flops / flops_per_ns : 0));
}

void vg_delay(vg_stream *stream, double ns)
{
    enqueue(stream, ns);
}

void vg_transfer(vg_stream *stream, size_t bytes)
{
    enqueue(stream, bytes_per_ns > 0 ? (double)bytes / bytes_per_ns : 0);
}

void vg_wait_until(uint64_t time)
{
    for (uint64_t now = vg_now(); now < time; now = vg_now()) {
        uint64_t left = time - now;
        if (left <= SLEEP_ABOVE_NS)
            continue;
        struct timespec pause = { (time_t)(left / 1000000000u), (long)(left % 1000000000u) };
        nanosleep(&pause, NULL);
    }
}

void vg_wait_device(int device)
{
    vg_wait_until(device_busy_until[device]);
}
