/* A stand-in for libnvidia-ml.so.1 that answers from a flat text file.
 *
 * It exists so that the real NVML implementation runs in tests through nvidia-ml-py itself: symbols, argument order and
 * struct layouts are those of nvml.h, everything else is data. The file (named by NVMLMOCK_CONFIG, read at nvmlInit)
 * has one key=value a line. A device's answers are under "<index>.<C call>", without the version suffix of the symbol;
 * a value of "!<code>" is that nvmlReturn_t; no key at all is NVML_ERROR_NOT_SUPPORTED.
 */
#ifndef NVMLMOCK_H
#define NVMLMOCK_H

#include <pthread.h>
#include <stdint.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    RESET_REQUIRED = 16,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define EXPORT __attribute__((visibility("default")))
#define NO_INSTANCE 0xFFFFFFFFu
#define MAX_GPUS 16
#define MAX_INSTANCES 16
#define MAX_PLACEMENTS 16

struct gpu;

/* What nvmlDevice_t points to: a GPU, or a MIG device when gpu_instance isn't NULL. */
struct device {
    struct gpu *gpu;
    struct gpu_instance *gpu_instance;
    struct compute_instance *compute_instance;
};

struct placement {
    unsigned start, size;
};

struct compute_instance {
    int live;
    unsigned id, profile_enum, profile_id, mig_index, compute_mode;
    struct placement placement;
    struct gpu_instance *gpu_instance;
    struct device mig_device;
    char uuid[48];
};

struct gpu_instance {
    int live;
    unsigned id, profile_enum, profile_id;
    struct placement placement;
    struct gpu *gpu;
    struct compute_instance compute[MAX_INSTANCES];
};

struct gpu {
    struct device device;
    int index;
    unsigned mig_mode, mig_pending, compute_mode;
    struct gpu_instance instances[MAX_INSTANCES];
};

extern pthread_mutex_t mock_lock;
extern struct gpu mock_gpus[MAX_GPUS];
extern int mock_gpu_count;

/* config.c */
int config_read(const char *path);
const char *config_get(const char *format, ...) __attribute__((format(printf, 1, 2)));
unsigned long long config_number(unsigned long long missing, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Numbers of "a b c"; returns how many. */
int config_numbers(const char *text, unsigned long long *numbers, int room);

/* faults.c: called at the start of every call; may block. device is NULL for calls about no device. */
int enter(const char *symbol, const struct device *device);

/* The configured answer of a call about a physical GPU; an error code, or SUCCESS and *value. */
int answer(const char *symbol, const char *call, const struct device *device, const char **value);

/* mig_profiles.c, mig_instances.c */
void mig_reset(struct gpu *gpu);
unsigned long long mig_memory(const struct device *mig_device);
int mig_device_string(const struct device *device, const char *call, char *text, unsigned length);

/* events.c */
void events_reset(void);

#endif
