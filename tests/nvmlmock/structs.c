/* Fabric, field values and processes: the calls that fill larger structures. */
#include "nvmlmock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fabric --- */

struct fabric_v1 {
    uint8_t cluster[16];
    unsigned status, clique, state;
};

struct fabric_v2 {
    unsigned version;
    struct fabric_v1 info;
    unsigned health_mask;
};

/* Answer: clique state status mask; the cluster's UUID as 32 hex digits under "<index>.fabricCluster". */
static int fabric(const char *symbol, struct device *device, struct fabric_v1 *info, unsigned *health_mask)
{
    unsigned long long values[4];
    const char *text, *cluster;
    int code = answer(symbol, "nvmlDeviceGetGpuFabricInfo", device, &text);

    if (code)
        return code;
    if (config_numbers(text, values, 4) != 4)
        return UNKNOWN;
    cluster = config_get("%d.fabricCluster", device->gpu->index);
    for (int i = 0; i < 16; i++)
        if (!cluster || sscanf(cluster + 2 * i, "%2hhx", &info->cluster[i]) != 1)
            return UNKNOWN;
    info->clique = (unsigned)values[0];
    info->state = (unsigned)values[1];
    info->status = (unsigned)values[2];
    *health_mask = (unsigned)values[3];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric_v1 *info)
{
    unsigned health_mask;

    return fabric(__func__, device, info, &health_mask);
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_v2 *info)
{
    if (info->version != (2u << 24 | sizeof *info))
        return ARGUMENT_VERSION_MISMATCH;
    return fabric(__func__, device, &info->info, &info->health_mask);
}

/* --- fields --- */

struct field_value {
    unsigned field, scope;
    int64_t timestamp, latency;
    unsigned type, code;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

EXPORT int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *values)
{
    int code = device ? enter(__func__, device) : INVALID_ARGUMENT;

    if (!code && device->gpu_instance)
        code = INVALID_ARGUMENT;
    for (int i = 0; !code && i < count; i++) {
        const char *value = config_get("%d.field.%u", device->gpu->index, values[i].field);

        if (value && !strcmp(value, "untouched"))
            continue; /* as a library does that doesn't know the field */
        values[i].code = !value ? NOT_SUPPORTED : value[0] == '!' ? (unsigned)atoi(value + 1) : SUCCESS;
        if (values[i].code)
            continue;
        values[i].type = 1; /* unsigned int */
        values[i].timestamp = 1;
        values[i].value.u = (unsigned)strtoul(value, NULL, 0);
    }
    return code;
}

/* --- processes --- */

struct process {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
};

/* Answer: "pid memory gi ci" repeated, in decimal; empty for none. */
static int processes(const char *symbol, const char *call, struct device *device, unsigned *room, struct process *list)
{
    unsigned long long values[4 * 64];
    const char *value;
    int code = answer(symbol, call, device, &value);
    unsigned count;

    if (code)
        return code;
    count = (unsigned)config_numbers(value, values, 4 * 64) / 4;
    if (count > *room) {
        *room = count;
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < count; i++) {
        const unsigned long long *v = &values[4 * i];

        list[i] = (struct process){(unsigned)v[0], v[1], (unsigned)v[2], (unsigned)v[3]};
    }
    *room = count;
    return SUCCESS;
}

#define PROCESS_LIST(call)                                                                         \
    EXPORT int call##_v3(struct device *device, unsigned *count, struct process *list)             \
    {                                                                                              \
        return processes(#call "_v3", #call, device, count, list);                                 \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
