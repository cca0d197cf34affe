/* What the two MIG files share. Profiles are known by their enum (the row of the table), not by NVML's profile id. */
#ifndef MIG_H
#define MIG_H

#include "nvmlmock.h"

#define PROFILE_ENUMS 0x12
#define COMPUTE_ENUMS 9
#define NONE 0xFFFFFFFFu

enum { ID, SLICES, MAX, MEMORY, SM, CE, DEC, ENC, JPEG, OFA, INFO_NUMBERS };
enum { CI_ID, CI_SLICES, CI_MAX, CI_SM, CI_NUMBERS };

/* The row's numbers, in the order above; 0 where the part has no such profile. */
int gi_info(const struct gpu *gpu, unsigned profile_enum, unsigned long long *info);
unsigned gi_enum_of(const struct gpu *gpu, unsigned profile_id);

int overlap(struct placement a, struct placement b);
int fits(const struct gpu *gpu, struct placement wanted);
int engines_left(const struct gpu *gpu, unsigned profile_enum);
unsigned id_at(const struct gpu *gpu, unsigned profile_enum, unsigned start);
int free_placement(const struct gpu *gpu, unsigned profile_enum, struct placement *where);
struct gpu_instance *add_gi(struct gpu *gpu, unsigned profile_enum, struct placement where);

/* As enter, for calls that need a part with MIG, or MIG switched on. */
int enter_mig(const char *symbol, const struct device *device);
int enter_enabled(const char *symbol, const struct device *device);

#endif
