/* Copyright: (c) 2026, the gpu_fleet.node contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for libnvidia-ml.so.1 that answers from the file named by FAKE_NVML_DATA, read anew at each call.
 *
 *   count=2                          number of GPUs
 *   0.uuid=GPU-...                   a value of GPU 0; `*.` is for every GPU
 *   nvmlInit.rc=18                   a function returns this code instead of doing its work
 *   0.nvmlDeviceGetMemoryInfo.rc=999 the same for one GPU
 *   nvmlDeviceGetMemoryInfo.hang=3600 (of one GPU too), .abort=1, .print=text
 *   0.compute=1, 0.compute.0.pid=1, 0.compute.0.memory=1048576
 *
 * A value that the file does not have is "not supported" (3).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { int gpu, mig; } device; /* mig: -1 for the GPU itself */

#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define MOST 64

static char line[4096];
static device devices[MOST], slices[MOST][8];

static const char *look_up(const char *key)
{
    const char *path = getenv("FAKE_NVML_DATA");
    FILE *file = path ? fopen(path, "r") : NULL;
    const char *found = NULL;
    size_t length = strlen(key);
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == '=')
            found = line + length + 1;
    }
    if (file)
        fclose(file);
    return found;
}

static const char *value(int gpu, const char *name)
{
    char key[256];
    const char *found;
    snprintf(key, sizeof key, "%d.%s", gpu, name);
    if (gpu >= 0 && (found = look_up(key)))
        return found;
    snprintf(key, sizeof key, gpu >= 0 ? "*.%s" : "%s", name);
    return look_up(key);
}

/* Do what the file says about this function, and return the code that it shall return. */
static int misbehave(int gpu, const char *function)
{
    char key[256];
    const char *said;
    snprintf(key, sizeof key, "%s.print", function);
    if ((said = look_up(key)))
        fprintf(stdout, "%s\n", said), fflush(stdout), fprintf(stderr, "%s\n", said);
    snprintf(key, sizeof key, "%s.hang", function);
    if ((said = value(gpu, key)) || (said = look_up(key)))
        sleep((unsigned)atoi(said));
    snprintf(key, sizeof key, "%s.abort", function);
    if (look_up(key))
        abort();
    snprintf(key, sizeof key, "%s.rc", function);
    said = value(gpu, key);
    if (!said)
        said = look_up(key);
    return said ? atoi(said) : 0;
}

static int number(int gpu, const char *name, u64 *into)
{
    const char *found = value(gpu, name);
    if (!found)
        return NOT_SUPPORTED;
    *into = strtoull(found, NULL, 0);
    return 0;
}

static int text(int gpu, const char *name, char *into, unsigned size)
{
    const char *found = value(gpu, name);
    if (!found)
        return NOT_SUPPORTED;
    snprintf(into, size, "%s", found);
    return 0;
}

#define ENTER(gpu, function) do { int code = misbehave(gpu, function); if (code) return code; } while (0)

/* A function that gives one number, two numbers or a text of one GPU. */
#define NUMBER(function, type, key) \
    int function(device *d, type *into) \
    { \
        u64 got; \
        int code; \
        ENTER(d->gpu, #function); \
        if (!(code = number(d->gpu, key, &got))) \
            *into = (type)got; \
        return code; \
    }
#define PAIR(function, first, second) \
    int function(device *d, unsigned *one, unsigned *two) \
    { \
        u64 a, b; \
        ENTER(d->gpu, #function); \
        if (number(d->gpu, first, &a) || number(d->gpu, second, &b)) \
            return NOT_SUPPORTED; \
        *one = (unsigned)a, *two = (unsigned)b; \
        return 0; \
    }
#define TEXT(function, key) \
    int function(device *d, char *into, unsigned size) \
    { \
        ENTER(d->gpu, #function); \
        return text(d->gpu, key, into, size); \
    }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return misbehave(-1, "nvmlInit"); }
int nvmlInit_v2(void) { return misbehave(-1, "nvmlInit"); }
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char *into, unsigned size) { return text(-1, "driver", into, size); }
int nvmlSystemGetNVMLVersion(char *into, unsigned size) { return text(-1, "library", into, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *into)
{
    u64 got;
    int code = number(-1, "cuda", &got);
    if (!code)
        *into = (int)got;
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *into)
{
    u64 got;
    ENTER(-1, "nvmlDeviceGetCount");
    if (number(-1, "count", &got))
        return NOT_SUPPORTED;
    *into = (unsigned)got;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **into)
{
    if (index >= MOST)
        return NOT_FOUND;
    ENTER((int)index, "nvmlDeviceGetHandleByIndex");
    devices[index].gpu = (int)index, devices[index].mig = -1;
    *into = &devices[index];
    return 0;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_info;

int nvmlDeviceGetPciInfo_v3(device *d, pci_info *into)
{
    memset(into, 0, sizeof *into);
    ENTER(d->gpu, "nvmlDeviceGetPciInfo");
    return text(d->gpu, "bus_id", into->bus_id, sizeof into->bus_id);
}

TEXT(nvmlDeviceGetName, "name")

int nvmlDeviceGetUUID(device *d, char *into, unsigned size)
{
    char key[64];
    ENTER(d->gpu, "nvmlDeviceGetUUID");
    snprintf(key, sizeof key, d->mig < 0 ? "uuid" : "mig%d.uuid", d->mig);
    return text(d->gpu, key, into, size);
}

typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *into)
{
    char total[64], used[64];
    u64 reserved = 0;
    ENTER(d->gpu, "nvmlDeviceGetMemoryInfo");
    snprintf(total, sizeof total, d->mig < 0 ? "memory.total" : "mig%d.total", d->mig);
    snprintf(used, sizeof used, d->mig < 0 ? "memory.used" : "mig%d.used", d->mig);
    if (number(d->gpu, total, &into->total) || number(d->gpu, used, &into->used))
        return NOT_SUPPORTED;
    if (d->mig < 0)
        number(d->gpu, "memory.reserved", &reserved);
    into->used += reserved; /* as drivers since 510 count */
    into->free = into->total - into->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *into)
{
    ENTER(d->gpu, "nvmlDeviceGetMemoryInfo_v2");
    if (number(d->gpu, "memory.total", &into->total) || number(d->gpu, "memory.used", &into->used)
        || number(d->gpu, "memory.reserved", &into->reserved))
        return NOT_SUPPORTED;
    into->free = into->total - into->used - into->reserved;
    return 0;
}

typedef struct { unsigned version, value; } addressing_mode;

int nvmlDeviceGetAddressingMode(device *d, addressing_mode *into)
{
    u64 got;
    int code;
    ENTER(d->gpu, "nvmlDeviceGetAddressingMode");
    if (!(code = number(d->gpu, "addressing_mode", &got)))
        into->value = (unsigned)got;
    return code;
}

/* Sets of CPUs or nodes are one 64-bit word here. */
static int set(int gpu, const char *key, unsigned size, u64 *into)
{
    memset(into, 0, size * sizeof *into);
    return number(gpu, key, into);
}

int nvmlDeviceGetCpuAffinity(device *d, unsigned size, u64 *into)
{
    ENTER(d->gpu, "nvmlDeviceGetCpuAffinity");
    return set(d->gpu, "cpu_affinity", size, into);
}

int nvmlDeviceGetMemoryAffinity(device *d, unsigned size, u64 *into, unsigned scope)
{
    (void)scope;
    ENTER(d->gpu, "nvmlDeviceGetMemoryAffinity");
    return set(d->gpu, "memory_affinity", size, into);
}

NUMBER(nvmlDeviceGetNumaNodeId, int, "numa_node_id")
NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor")
NUMBER(nvmlDeviceGetArchitecture, unsigned, "architecture")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_generation_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "throttle_reasons")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig_count")
PAIR(nvmlDeviceGetCudaComputeCapability, "compute_major", "compute_minor")
PAIR(nvmlDeviceGetMigMode, "mig_current", "mig_pending")
PAIR(nvmlDeviceGetEccMode, "ecc_current", "ecc_pending")
PAIR(nvmlDeviceGetUtilizationRates_pair, "utilization_gpu", "utilization_memory")

int nvmlDeviceGetUtilizationRates(device *d, unsigned *into)
{
    return nvmlDeviceGetUtilizationRates_pair(d, &into[0], &into[1]);
}

static int indexed(device *d, const char *name, unsigned one, u64 *into)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%u", name, one);
    return number(d->gpu, key, into);
}

#define INDEXED(function, name) \
    int function(device *d, unsigned one, unsigned *into) \
    { \
        u64 got; \
        int code; \
        ENTER(d->gpu, #function); \
        if (!(code = indexed(d, name, one, &got))) \
            *into = (unsigned)got; \
        return code; \
    }

INDEXED(nvmlDeviceGetClockInfo, "clock")
INDEXED(nvmlDeviceGetMaxClockInfo, "clock_max")
INDEXED(nvmlDeviceGetTemperature, "temperature")
INDEXED(nvmlDeviceGetNvLinkState, "nvlink")

#define MEMORY_TEMPERATURE 82

typedef struct {
    unsigned id, scope;
    long long when, took;
    unsigned type, code;
    union { unsigned number; u64 room; } value;
} field_value;

int nvmlDeviceGetFieldValues(device *d, int count, field_value *into)
{
    ENTER(d->gpu, "nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        u64 got = 0;
        int known = into[i].id == MEMORY_TEMPERATURE;
        into[i].code = known ? (unsigned)number(d->gpu, "temperature_memory", &got) : NOT_SUPPORTED;
        into[i].value.room = 0;
        into[i].value.number = (unsigned)got;
    }
    return 0;
}

int nvmlDeviceGetTotalEccErrors(device *d, unsigned kind, unsigned span, u64 *into)
{
    ENTER(d->gpu, "nvmlDeviceGetTotalEccErrors");
    return indexed(d, kind ? "ecc_uncorrected" : "ecc_corrected", span, into);
}

int nvmlDeviceGetRemappedRows(device *d, unsigned *right, unsigned *wrong, unsigned *pending, unsigned *failed)
{
    unsigned *into[] = {right, wrong, pending, failed};
    ENTER(d->gpu, "nvmlDeviceGetRemappedRows");
    for (unsigned i = 0; i < 4; i++) {
        u64 got;
        if (indexed(d, "remapped", i, &got))
            return NOT_SUPPORTED;
        *into[i] = (unsigned)got;
    }
    return 0;
}

int nvmlDeviceGetRetiredPages(device *d, unsigned cause, unsigned *count, u64 *addresses)
{
    u64 pages;
    ENTER(d->gpu, "nvmlDeviceGetRetiredPages");
    if (indexed(d, "retired", cause, &pages))
        return NOT_SUPPORTED;
    if (*count < pages || (pages && !addresses)) {
        *count = (unsigned)pages;
        return INSUFFICIENT_SIZE;
    }
    for (u64 i = 0; i < pages; i++)
        addresses[i] = i << 12;
    *count = (unsigned)pages;
    return 0;
}

typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } process_info;

static int processes(device *d, const char *kind, unsigned *count, process_info *into)
{
    char pid[64], memory[64];
    u64 number_of = 0, got;
    if (number(d->gpu, kind, &number_of))
        return NOT_SUPPORTED;
    if (*count < number_of || (number_of && !into)) {
        *count = (unsigned)number_of;
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < number_of; i++) {
        memset(&into[i], 0, sizeof into[i]);
        snprintf(pid, sizeof pid, "%s.%u.pid", kind, i);
        snprintf(memory, sizeof memory, "%s.%u.memory", kind, i);
        if (!number(d->gpu, pid, &got))
            into[i].pid = (unsigned)got;
        into[i].memory = number(d->gpu, memory, &got) ? ~0ULL : got;
    }
    *count = (unsigned)number_of;
    return 0;
}

#define PROCESSES(function, kind) \
    int function(device *d, unsigned *count, process_info *into) \
    { \
        ENTER(d->gpu, #function); \
        return processes(d, kind, count, into); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned slot, device **into)
{
    char key[64];
    u64 total;
    snprintf(key, sizeof key, "mig%u.total", slot);
    if (slot >= 8 || number(d->gpu, key, &total))
        return NOT_FOUND;
    slices[d->gpu][slot].gpu = d->gpu, slices[d->gpu][slot].mig = (int)slot;
    *into = &slices[d->gpu][slot];
    return 0;
}

static int of_slice(device *d, const char *name, unsigned *into)
{
    char key[64];
    u64 got;
    snprintf(key, sizeof key, "mig%d.%s", d->mig, name);
    if (d->mig < 0 || number(d->gpu, key, &got))
        return NOT_SUPPORTED;
    *into = (unsigned)got;
    return 0;
}

int nvmlDeviceGetGpuInstanceId(device *d, unsigned *into) { return of_slice(d, "gi", into); }
int nvmlDeviceGetComputeInstanceId(device *d, unsigned *into) { return of_slice(d, "ci", into); }
