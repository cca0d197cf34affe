/* GPU instances, compute instances and the MIG devices that these make. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

static unsigned uuid_counter;

static int ci_info(const struct gpu_instance *gi, unsigned ci_enum, unsigned long long *info)
{
    const char *text = config_get("%d.mig.%u.ci.%u", gi->gpu->index, gi->profile_enum, ci_enum);

    return config_numbers(text, info, CI_NUMBERS) == CI_NUMBERS;
}

static int has_compute(const struct gpu_instance *gi)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gi->compute[i].live)
            return 1;
    return 0;
}

static unsigned ci_enum_of(const struct gpu_instance *gi, unsigned profile_id)
{
    unsigned long long info[CI_NUMBERS];

    for (unsigned c = 0; c < COMPUTE_ENUMS; c++)
        if (ci_info(gi, c, info) && info[CI_ID] == profile_id)
            return c;
    return NONE;
}

/* --- GPU instances --- */

struct gi_info {
    struct device *device;
    unsigned id, profile_id;
    struct placement placement;
};

static int enter_gi(const char *symbol, const struct gpu_instance *gi)
{
    int code = gi ? enter(symbol, &gi->gpu->device) : INVALID_ARGUMENT;

    return code ? code : gi->live ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlDeviceGetGpuInstances(struct device *device, unsigned profile_id, struct gpu_instance **out,
                                     unsigned *count)
{
    int code = enter_enabled(__func__, device);

    if (code)
        return code;
    if (gi_enum_of(device->gpu, profile_id) == NONE)
        return INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (device->gpu->instances[i].live && device->gpu->instances[i].profile_id == profile_id)
            out[(*count)++] = &device->gpu->instances[i];
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetInfo(struct gpu_instance *gi, struct gi_info *info)
{
    int code = enter_gi(__func__, gi);

    if (!code)
        *info = (struct gi_info){&gi->gpu->device, gi->id, gi->profile_id, gi->placement};
    return code;
}

EXPORT int nvmlDeviceCreateGpuInstance(struct device *device, unsigned profile_id, struct gpu_instance **out)
{
    struct placement where;
    int code = enter_enabled(__func__, device);
    unsigned e;

    if (code)
        return code;
    e = gi_enum_of(device->gpu, profile_id);
    if (e == NONE)
        return INVALID_ARGUMENT;
    if (!free_placement(device->gpu, e, &where))
        return INSUFFICIENT_RESOURCES;
    *out = add_gi(device->gpu, e, where);
    return SUCCESS;
}

EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, unsigned profile_id,
                                                    const struct placement *where, struct gpu_instance **out)
{
    int code = enter_enabled(__func__, device);
    unsigned e;

    if (code)
        return code;
    e = gi_enum_of(device->gpu, profile_id);
    if (e == NONE || !where || id_at(device->gpu, e, where->start) == NONE ||
        where->size != config_number(0, "%d.mig.%u.size", device->gpu->index, e))
        return INVALID_ARGUMENT;
    if (!engines_left(device->gpu, e) || !fits(device->gpu, *where))
        return INSUFFICIENT_RESOURCES;
    *out = add_gi(device->gpu, e, *where);
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceDestroy(struct gpu_instance *gi)
{
    int code = enter_gi(__func__, gi);

    if (!code && has_compute(gi))
        code = IN_USE;
    if (!code)
        gi->live = 0;
    return code;
}

/* --- compute instances --- */

struct ci_profile_info {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    char name[96];
};

struct ci_info {
    struct device *device;
    struct gpu_instance *gi;
    unsigned id, profile_id;
    struct placement placement;
};

EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct gpu_instance *gi, unsigned c, unsigned engine,
                                                         struct ci_profile_info *out)
{
    unsigned long long info[CI_NUMBERS];
    int code = enter_gi(__func__, gi);
    const char *name;

    if (code)
        return code;
    if (c >= COMPUTE_ENUMS || engine)
        return INVALID_ARGUMENT;
    if (out->version != (2u << 24 | sizeof *out))
        return ARGUMENT_VERSION_MISMATCH;
    if (!ci_info(gi, c, info))
        return NOT_SUPPORTED;
    name = config_get("%d.mig.%u.ci.%u.name", gi->gpu->index, gi->profile_enum, c);
    out->id = (unsigned)info[CI_ID];
    out->slices = (unsigned)info[CI_SLICES];
    out->instances = (unsigned)info[CI_MAX];
    out->multiprocessors = (unsigned)info[CI_SM];
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstances(struct gpu_instance *gi, unsigned profile_id,
                                              struct compute_instance **out, unsigned *count)
{
    int code = enter_gi(__func__, gi);

    if (code)
        return code;
    if (ci_enum_of(gi, profile_id) == NONE)
        return INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gi->compute[i].live && gi->compute[i].profile_id == profile_id)
            out[(*count)++] = &gi->compute[i];
    return SUCCESS;
}

static unsigned free_mig_index(const struct gpu *gpu)
{
    for (unsigned index = 0;; index++) {
        int taken = 0;

        for (int g = 0; g < MAX_INSTANCES; g++)
            for (int c = 0; c < MAX_INSTANCES; c++) {
                const struct compute_instance *ci = &gpu->instances[g].compute[c];

                taken |= gpu->instances[g].live && ci->live && ci->mig_index == index;
            }
        if (!taken)
            return index;
    }
}

static struct placement free_slices(const struct gpu_instance *gi, unsigned size)
{
    struct placement where = {0, size};

    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gi->compute[i].live && overlap(gi->compute[i].placement, where)) {
            where.start = gi->compute[i].placement.start + gi->compute[i].placement.size;
            i = -1;
        }
    return where;
}

EXPORT int nvmlGpuInstanceCreateComputeInstance(struct gpu_instance *gi, unsigned profile_id,
                                                struct compute_instance **out)
{
    unsigned long long info[CI_NUMBERS], parent[INFO_NUMBERS];
    struct compute_instance *ci;
    struct placement where;
    unsigned c, mig_index;
    int code = enter_gi(__func__, gi);

    if (code)
        return code;
    c = ci_enum_of(gi, profile_id);
    if (c == NONE)
        return INVALID_ARGUMENT;
    ci_info(gi, c, info);
    gi_info(gi->gpu, gi->profile_enum, parent);
    where = free_slices(gi, (unsigned)info[CI_SLICES]);
    if (where.start + where.size > parent[SLICES])
        return INSUFFICIENT_RESOURCES;
    for (ci = gi->compute; ci->live;)
        ci++; /* there are fewer slices than MAX_INSTANCES */
    mig_index = free_mig_index(gi->gpu);
    memset(ci, 0, sizeof *ci);
    ci->live = 1;
    ci->id = (unsigned)(ci - gi->compute);
    ci->profile_enum = c;
    ci->profile_id = profile_id;
    ci->mig_index = mig_index;
    ci->placement = where;
    ci->gpu_instance = gi;
    ci->mig_device = (struct device){gi->gpu, gi, ci};
    snprintf(ci->uuid, sizeof ci->uuid, "MIG-00000000-0000-4000-8000-%04x%08x", gi->gpu->index, ++uuid_counter);
    *out = ci;
    return SUCCESS;
}

static int enter_ci(const char *symbol, const struct compute_instance *ci)
{
    if (!ci || !ci->gpu_instance)
        return INVALID_ARGUMENT;
    if (!ci->live)
        return NOT_FOUND;
    return enter_gi(symbol, ci->gpu_instance);
}

/* nvml.h calls the device of a compute instance its parent; drivers give the MIG device. "ciInfoParent=1" keeps to
 * nvml.h. */
EXPORT int nvmlComputeInstanceGetInfo_v2(struct compute_instance *ci, struct ci_info *info)
{
    int code = enter_ci(__func__, ci);

    if (!code) {
        struct device *device = config_number(0, "ciInfoParent") ? &ci->mig_device.gpu->device : &ci->mig_device;

        *info = (struct ci_info){device, ci->gpu_instance, ci->id, ci->profile_id, ci->placement};
    }
    return code;
}

EXPORT int nvmlComputeInstanceDestroy(struct compute_instance *ci)
{
    int code = enter_ci(__func__, ci);

    if (!code)
        ci->live = 0;
    return code;
}

/* --- MIG devices --- */

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out)
{
    int code = device ? enter(__func__, device) : INVALID_ARGUMENT;

    if (code)
        return code;
    if (device->gpu_instance || index >= config_number(0, "%d.mig.maxDevices", device->gpu->index))
        return INVALID_ARGUMENT;
    for (int g = 0; g < MAX_INSTANCES; g++)
        for (int c = 0; c < MAX_INSTANCES; c++) {
            struct compute_instance *ci = &device->gpu->instances[g].compute[c];

            if (device->gpu->instances[g].live && ci->live && ci->mig_index == index) {
                *out = &ci->mig_device;
                return SUCCESS;
            }
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
    int code = device ? enter(__func__, device) : INVALID_ARGUMENT;

    if (!code && !device->gpu_instance)
        code = INVALID_ARGUMENT;
    if (!code)
        *id = device->gpu_instance->id;
    return code;
}

EXPORT int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id)
{
    int code = device ? enter(__func__, device) : INVALID_ARGUMENT;

    if (!code && !device->compute_instance)
        code = INVALID_ARGUMENT;
    if (!code)
        *id = device->compute_instance->id;
    return code;
}

unsigned long long mig_memory(const struct device *mig_device)
{
    unsigned long long info[INFO_NUMBERS];

    if (!gi_info(mig_device->gpu, mig_device->gpu_instance->profile_enum, info))
        return 0;
    return info[MEMORY] << 20;
}

int mig_device_string(const struct device *device, const char *call, char *text, unsigned length)
{
    const struct compute_instance *ci = device->compute_instance;
    int gpu = device->gpu->index;
    const char *parent = config_get("%d.nvmlDeviceGetName", gpu);
    const char *own = config_get("%d.mig.%u.ci.%u.name", gpu, device->gpu_instance->profile_enum, ci->profile_enum);

    if (!strcmp(call, "nvmlDeviceGetUUID"))
        snprintf(text, length, "%s", ci->uuid);
    else if (!strcmp(call, "nvmlDeviceGetName") && parent && own)
        snprintf(text, length, "%s %s", parent, own);
    else
        return INVALID_ARGUMENT;
    return SUCCESS;
}
