/* MIG modes, profiles and placements: what a GPU could hold.
 *
 * Configuration of GPU i, e being a profile's enum:
 *   i.mig.capable, i.mig.mode, i.mig.needsReset, i.mig.maxDevices
 *   i.mig.pairs         1: at most one instance with and one without i.mig.e.graphics
 *   i.mig.e.info        id slices max memoryMiB sm ce dec enc jpeg ofa
 *   i.mig.e.name        as nvmlGpuInstanceProfileInfo_v2_t holds it
 *   i.mig.e.size        memory slices of a placement
 *   i.mig.e.starts      placements' first slices; i.mig.e.ids: the instance id at each, where known
 *   i.mig.e.order       the order in which a placement is chosen where none is asked for
 *   i.mig.e.ci.c        id slices max sm, c being the compute instance profile's enum
 *   i.mig.e.ci.c.name
 */
#include "mig.h"

#include <stdio.h>
#include <string.h>

void mig_reset(struct gpu *gpu)
{
    gpu->mig_mode = gpu->mig_pending = (unsigned)config_number(0, "%d.mig.mode", gpu->index);
}

/* --- the profile tables --- */

int gi_info(const struct gpu *gpu, unsigned profile_enum, unsigned long long *info)
{
    return config_numbers(config_get("%d.mig.%u.info", gpu->index, profile_enum), info, INFO_NUMBERS) == INFO_NUMBERS;
}

unsigned gi_enum_of(const struct gpu *gpu, unsigned profile_id)
{
    unsigned long long info[INFO_NUMBERS];

    for (unsigned e = 0; e < PROFILE_ENUMS; e++)
        if (gi_info(gpu, e, info) && info[ID] == profile_id)
            return e;
    return NONE;
}

/* --- what is taken --- */

int overlap(struct placement a, struct placement b)
{
    return a.start < b.start + b.size && b.start < a.start + a.size;
}

int fits(const struct gpu *gpu, struct placement wanted)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].live && overlap(gpu->instances[i].placement, wanted))
            return 0;
    return 1;
}

static unsigned gi_count(const struct gpu *gpu, unsigned profile_enum)
{
    unsigned count = 0;

    for (int i = 0; i < MAX_INSTANCES; i++)
        count += gpu->instances[i].live && gpu->instances[i].profile_enum == profile_enum;
    return count;
}

static unsigned placements(const struct gpu *gpu, unsigned profile_enum, const char *list, unsigned long long *out)
{
    return (unsigned)config_numbers(config_get("%d.mig.%u.%s", gpu->index, profile_enum, list), out, MAX_PLACEMENTS);
}

/* Jetson Thor's rule: at most two instances, one for compute and one for graphics. */
static int pair_allowed(const struct gpu *gpu, unsigned profile_enum)
{
    unsigned long long wanted = config_number(0, "%d.mig.%u.graphics", gpu->index, profile_enum);

    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].live &&
            config_number(0, "%d.mig.%u.graphics", gpu->index, gpu->instances[i].profile_enum) == wanted)
            return 0;
    return 1;
}

/* Whether the part's engines and the profile's own limit allow one more of it. An +me instance is the only one of its
 * GPU because it takes the one OFA engine. */
int engines_left(const struct gpu *gpu, unsigned profile_enum)
{
    unsigned long long wanted[INFO_NUMBERS], held[INFO_NUMBERS], other[INFO_NUMBERS];

    if (!gi_info(gpu, profile_enum, wanted) || gi_count(gpu, profile_enum) >= wanted[MAX])
        return 0;
    if (config_number(0, "%d.mig.pairs", gpu->index) && !pair_allowed(gpu, profile_enum))
        return 0;
    for (int engine = SM; engine < INFO_NUMBERS; engine++) {
        unsigned long long total = 0, used = wanted[engine];

        for (unsigned e = 0; e < PROFILE_ENUMS; e++)
            if (gi_info(gpu, e, other) && other[engine] > total)
                total = other[engine];
        for (int i = 0; i < MAX_INSTANCES; i++)
            if (gpu->instances[i].live && gi_info(gpu, gpu->instances[i].profile_enum, held))
                used += held[engine];
        if (used > total)
            return 0;
    }
    return 1;
}

static unsigned lowest_free_id(const struct gpu *gpu)
{
    unsigned id = 1; /* 0 is the instance that takes the whole GPU */

    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].live && gpu->instances[i].id == id) {
            id++;
            i = -1;
        }
    return id;
}

/* The id of an instance at this start, or NONE where the profile has no such placement. */
unsigned id_at(const struct gpu *gpu, unsigned profile_enum, unsigned start)
{
    unsigned long long starts[MAX_PLACEMENTS], ids[MAX_PLACEMENTS];
    unsigned count = placements(gpu, profile_enum, "starts", starts);
    int numbered = placements(gpu, profile_enum, "ids", ids) == count;

    for (unsigned i = 0; i < count; i++)
        if (starts[i] == start)
            return numbered ? (unsigned)ids[i] : lowest_free_id(gpu);
    return NONE;
}

int free_placement(const struct gpu *gpu, unsigned profile_enum, struct placement *where)
{
    unsigned long long order[MAX_PLACEMENTS];
    unsigned count = placements(gpu, profile_enum, "order", order);

    where->size = (unsigned)config_number(0, "%d.mig.%u.size", gpu->index, profile_enum);
    for (unsigned i = 0; i < count && engines_left(gpu, profile_enum); i++) {
        where->start = (unsigned)order[i];
        if (fits(gpu, *where))
            return 1;
    }
    return 0;
}

struct gpu_instance *add_gi(struct gpu *gpu, unsigned profile_enum, struct placement where)
{
    struct gpu_instance *gi = gpu->instances;
    unsigned long long info[INFO_NUMBERS];

    while (gi->live)
        gi++; /* there are fewer placements than MAX_INSTANCES */
    gi_info(gpu, profile_enum, info);
    memset(gi, 0, sizeof *gi);
    gi->live = 1;
    gi->id = id_at(gpu, profile_enum, where.start);
    gi->profile_enum = profile_enum;
    gi->profile_id = (unsigned)info[ID];
    gi->placement = where;
    gi->gpu = gpu;
    return gi;
}

/* How many more could be made one after the other: counted by making them on a copy. */
static unsigned gi_capacity(const struct gpu *gpu, unsigned profile_enum)
{
    struct gpu trial = *gpu;
    struct placement where;
    unsigned made = 0;

    while (free_placement(&trial, profile_enum, &where)) {
        add_gi(&trial, profile_enum, where);
        made++;
    }
    return made;
}

/* --- mode --- */

int enter_mig(const char *symbol, const struct device *device)
{
    int code = device ? enter(symbol, device) : INVALID_ARGUMENT;

    if (code)
        return code;
    if (device->gpu_instance)
        return INVALID_ARGUMENT;
    return config_number(0, "%d.mig.capable", device->gpu->index) ? SUCCESS : NOT_SUPPORTED;
}

int enter_enabled(const char *symbol, const struct device *device)
{
    int code = enter_mig(symbol, device);

    return code ? code : device->gpu->mig_mode ? SUCCESS : NOT_SUPPORTED;
}

/* For the calls that a part without MIG answers too, if its driver knows of MIG at all. */
static int enter_known(const char *symbol, const struct device *device)
{
    int code = enter_mig(symbol, device);

    return code == NOT_SUPPORTED && config_get("%d.mig.mode", device->gpu->index) ? SUCCESS : code;
}

EXPORT int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    int code = enter_known(__func__, device);

    if (!code) {
        *current = device->gpu->mig_mode;
        *pending = device->gpu->mig_pending;
    }
    return code;
}

EXPORT int nvmlDeviceSetMigMode(struct device *device, unsigned mode, unsigned *status)
{
    int code = enter_mig(__func__, device);
    struct gpu *gpu;

    if (code)
        return code;
    if (mode > 1)
        return INVALID_ARGUMENT;
    /* What keeps the mode from changing at once is told as the status of an accepted request. */
    gpu = device->gpu;
    gpu->mig_pending = mode;
    *status = SUCCESS;
    if (mode == gpu->mig_mode)
        return SUCCESS;
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].live)
            *status = IN_USE;
    if (*status == SUCCESS && config_number(0, "%d.mig.needsReset", gpu->index))
        *status = RESET_REQUIRED;
    if (*status == SUCCESS)
        gpu->mig_mode = mode;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    int code = device ? enter(__func__, device) : INVALID_ARGUMENT;

    if (!code && device->gpu_instance)
        code = INVALID_ARGUMENT;
    if (!code)
        *count = device->gpu->mig_mode ? (unsigned)config_number(0, "%d.mig.maxDevices", device->gpu->index) : 0;
    return code;
}

/* --- GPU instance profiles --- */

struct gi_profile_info {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
};

EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned e, struct gi_profile_info *out)
{
    unsigned long long info[INFO_NUMBERS];
    int code = enter_known(__func__, device);
    const char *name;

    if (code)
        return code;
    if (e >= PROFILE_ENUMS)
        return INVALID_ARGUMENT;
    if (out->version != (2u << 24 | sizeof *out))
        return ARGUMENT_VERSION_MISMATCH;
    if (!gi_info(device->gpu, e, info))
        return NOT_SUPPORTED;
    name = config_get("%d.mig.%u.name", device->gpu->index, e);
    out->id = (unsigned)info[ID];
    out->slices = (unsigned)info[SLICES];
    out->instances = (unsigned)info[MAX];
    out->memory_mib = info[MEMORY];
    out->multiprocessors = (unsigned)info[SM];
    out->copy_engines = (unsigned)info[CE];
    out->decoders = (unsigned)info[DEC];
    out->encoders = (unsigned)info[ENC];
    out->jpeg = (unsigned)info[JPEG];
    out->ofa = (unsigned)info[OFA];
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned profile_id,
                                                         struct placement *out, unsigned *count)
{
    unsigned long long starts[MAX_PLACEMENTS];
    int code = enter_mig(__func__, device);
    unsigned e, size, known;

    if (code)
        return code;
    e = gi_enum_of(device->gpu, profile_id);
    if (e == NONE)
        return INVALID_ARGUMENT;
    size = (unsigned)config_number(0, "%d.mig.%u.size", device->gpu->index, e);
    known = placements(device->gpu, e, "starts", starts);
    for (unsigned i = 0; out && i < known && i < *count; i++)
        out[i] = (struct placement){(unsigned)starts[i], size};
    *count = known;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *device, unsigned profile_id, unsigned *count)
{
    int code = enter_enabled(__func__, device);
    unsigned e = code ? NONE : gi_enum_of(device->gpu, profile_id);

    if (!code && e == NONE)
        code = INVALID_ARGUMENT;
    if (!code)
        *count = gi_capacity(device->gpu, e);
    return code;
}
