/* The system's and the devices' getters: each is its answer in the C type that nvml.h gives it. */
#include "nvmlmock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int copy(const char *text, char *out, unsigned length)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

/* --- system --- */

static int system_string(const char *symbol, const char *key, char *out, unsigned length)
{
    int code = enter(symbol, NULL);
    const char *value = config_get("%s", key);

    return code ? code : copy(value ? value : "", out, length);
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return system_string(__func__, "driverVersion", version, length);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return system_string(__func__, "nvmlVersion", version, length);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    int code = enter(__func__, NULL);

    if (!code)
        *version = (int)config_number(0, "cudaDriverVersion");
    return code;
}

EXPORT const char *nvmlErrorString(int code)
{
    static char text[32];

    snprintf(text, sizeof text, "error %d of the mock", code);
    return text;
}

/* --- enumeration --- */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = enter(__func__, NULL);

    if (!code)
        *count = (unsigned)mock_gpu_count;
    return code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    int code = enter(__func__, NULL);

    if (code)
        return code;
    if (index >= (unsigned)mock_gpu_count)
        return INVALID_ARGUMENT;
    *device = &mock_gpus[index].device;
    return enter(__func__, *device);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device)
{
    int code = enter(__func__, NULL);

    if (code)
        return code;
    for (int i = 0; i < mock_gpu_count; i++) {
        const char *own = config_get("%d.nvmlDeviceGetUUID", i);

        if (own && !strcmp(own, uuid)) {
            *device = &mock_gpus[i].device;
            return enter(__func__, *device);
        }
        for (int g = 0; g < MAX_INSTANCES; g++)
            for (int c = 0; c < MAX_INSTANCES; c++) {
                struct compute_instance *compute = &mock_gpus[i].instances[g].compute[c];

                if (compute->live && !strcmp(compute->uuid, uuid)) {
                    *device = &compute->mig_device;
                    return SUCCESS;
                }
            }
    }
    return NOT_FOUND;
}

/* --- strings --- */

static int string_getter(const char *symbol, struct device *device, char *out, unsigned length)
{
    const char *value;
    int code;

    if (device && device->gpu_instance) {
        code = enter(symbol, device);
        return code ? code : mig_device_string(device, symbol, out, length);
    }
    code = answer(symbol, symbol, device, &value);
    return code ? code : copy(value, out, length);
}

#define STRING_GETTER(function)                                                                    \
    EXPORT int function(struct device *device, char *out, unsigned length)                         \
    {                                                                                              \
        return string_getter(#function, device, out, length);                                      \
    }

STRING_GETTER(nvmlDeviceGetUUID)
STRING_GETTER(nvmlDeviceGetName)
STRING_GETTER(nvmlDeviceGetSerial)

/* --- single numbers --- */

#define NUMBER_GETTER(type, function)                                                              \
    EXPORT int function(struct device *device, type *out)                                          \
    {                                                                                              \
        const char *value;                                                                         \
        int code = answer(#function, #function, device, &value);                                   \
                                                                                                   \
        if (!code)                                                                                 \
            *out = (type)strtoull(value, NULL, 0);                                                 \
        return code;                                                                               \
    }

NUMBER_GETTER(unsigned, nvmlDeviceGetMinorNumber)
NUMBER_GETTER(unsigned, nvmlDeviceGetModuleId)
NUMBER_GETTER(unsigned, nvmlDeviceGetBrand)
NUMBER_GETTER(unsigned, nvmlDeviceGetArchitecture)
NUMBER_GETTER(int, nvmlDeviceGetNumaNodeId)
NUMBER_GETTER(unsigned, nvmlDeviceGetPersistenceMode)
/* An enum in nvml.h, so 32 bits; nvidia-ml-py passes a pointer to 64 that it zeroed. */
NUMBER_GETTER(unsigned, nvmlDeviceGetVirtualizationMode)
NUMBER_GETTER(unsigned long long, nvmlDeviceGetSupportedEventTypes)

EXPORT int nvmlDeviceGetIndex(struct device *device, unsigned *index)
{
    const char *value;
    int code = answer(__func__, __func__, device, &value);

    if (!code)
        *index = device->compute_instance ? device->compute_instance->mig_index : (unsigned)strtoul(value, NULL, 0);
    return code;
}

static unsigned *compute_mode(struct device *device)
{
    return device->compute_instance ? &device->compute_instance->compute_mode : &device->gpu->compute_mode;
}

EXPORT int nvmlDeviceGetComputeMode(struct device *device, unsigned *mode)
{
    const char *value;
    int code = answer(__func__, __func__, device, &value);

    if (!code)
        *mode = *compute_mode(device);
    return code;
}

EXPORT int nvmlDeviceSetComputeMode(struct device *device, unsigned mode)
{
    const char *value;
    int code = answer(__func__, "nvmlDeviceGetComputeMode", device, &value);

    if (code)
        return code;
    if (mode > 3)
        return INVALID_ARGUMENT;
    if (device->gpu->mig_mode && !device->compute_instance)
        return NOT_SUPPORTED; /* while MIG is on the mode is a MIG device's */
    *compute_mode(device) = mode;
    return SUCCESS;
}

/* --- pairs and structs --- */

static int numbers(const char *symbol, const char *call, struct device *device, unsigned long long *out, int expected)
{
    const char *value;
    int code = answer(symbol, call, device, &value);

    if (code)
        return code;
    return config_numbers(value, out, expected) == expected ? SUCCESS : UNKNOWN;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    unsigned long long pair[2];
    int code = numbers(__func__, __func__, device, pair, 2);

    if (!code) {
        *major = (int)pair[0];
        *minor = (int)pair[1];
    }
    return code;
}

EXPORT int nvmlDeviceGetEccMode(struct device *device, unsigned *current, unsigned *pending)
{
    unsigned long long pair[2];
    int code = numbers(__func__, __func__, device, pair, 2);

    if (!code) {
        *current = (unsigned)pair[0];
        *pending = (unsigned)pair[1];
    }
    return code;
}

struct addressing_mode {
    unsigned version, value;
};

EXPORT int nvmlDeviceGetAddressingMode(struct device *device, struct addressing_mode *mode)
{
    unsigned long long value;
    int code = numbers(__func__, __func__, device, &value, 1);

    if (code)
        return code;
    if (mode->version != (1u << 24 | sizeof *mode))
        return ARGUMENT_VERSION_MISMATCH;
    mode->value = (unsigned)value;
    return SUCCESS;
}

struct memory {
    unsigned long long total, free, used;
};

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    unsigned long long values[3];
    int code;

    if (device && device->gpu_instance) {
        code = enter(__func__, device);
        if (code)
            return code;
        if (!config_get("%d.nvmlDeviceGetMemoryInfo", device->gpu->index))
            return NOT_SUPPORTED; /* unified memory */
        memory->total = mig_memory(device);
        memory->free = memory->total;
        memory->used = 0;
        return SUCCESS;
    }
    code = numbers(__func__, __func__, device, values, 3);
    if (!code)
        *memory = (struct memory){values[0], values[1], values[2]};
    return code;
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static int fill_pci(struct pci_info *info, const char *bus_id)
{
    memset(info, 0, sizeof *info);
    if (sscanf(bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3)
        return UNKNOWN;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%.12s", bus_id + 4);
    return copy(bus_id, info->bus_id, sizeof info->bus_id);
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    const char *bus_id;
    int code = answer(__func__, "nvmlDeviceGetPciInfo", device, &bus_id);

    if (!code)
        code = fill_pci(info, bus_id);
    if (!code) {
        info->device_id = (unsigned)config_number(0, "%d.pciDeviceId", device->gpu->index);
        info->subsystem_id = (unsigned)config_number(0, "%d.pciSubSystemId", device->gpu->index);
    }
    return code;
}

/* --- NVLink --- */

static int link_answer(const char *symbol, const char *call, struct device *device, unsigned link, const char **value)
{
    char key[80];
    int code;

    snprintf(key, sizeof key, "%s.%u", call, link);
    code = answer(symbol, key, device, value);
    if (code != NOT_SUPPORTED)
        return code;
    /* A part with links answers for a link that it hasn't with INVALID_ARGUMENT. */
    if (!config_get("%d.nvmlDeviceGetNvLinkState.0", device->gpu->index))
        return NOT_SUPPORTED;
    return config_get("%d.nvmlDeviceGetNvLinkState.%u", device->gpu->index, link) ? NOT_SUPPORTED : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active)
{
    const char *value;
    int code = link_answer(__func__, __func__, device, link, &value);

    if (!code)
        *active = (unsigned)strtoul(value, NULL, 0);
    return code;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned link, struct pci_info *info)
{
    const char *bus_id;
    int code = link_answer(__func__, "nvmlDeviceGetNvLinkRemotePciInfo", device, link, &bus_id);

    return code ? code : fill_pci(info, bus_id);
}
