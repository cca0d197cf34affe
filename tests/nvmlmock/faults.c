/* Begin and end of a session, and what a test may do to any call: an error code once, n times or for ever, or a hang. */
#include "nvmlmock.h"

#include <stdlib.h>
#include <string.h>

#define HANG (-1)
#define FOR_EVER (-1)
#define ANY_DEVICE (-1)

struct fault {
    char symbol[80]; /* "*" for every call about the device */
    int device, code, times;
};

pthread_mutex_t mock_lock = PTHREAD_MUTEX_INITIALIZER;
struct gpu mock_gpus[MAX_GPUS];
int mock_gpu_count;

static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static struct fault faults[32];
static int fault_count;
static int hanging;
static int sessions; /* nvmlInit is counted */

EXPORT void nvmlmock_fault(const char *symbol, int device, int code, int times)
{
    pthread_mutex_lock(&mock_lock);
    if (fault_count < 32) {
        struct fault *fault = &faults[fault_count++];

        strncpy(fault->symbol, symbol, sizeof fault->symbol - 1);
        fault->device = device;
        fault->code = code;
        fault->times = times;
    }
    pthread_mutex_unlock(&mock_lock);
}

/* Ends all faults; calls that hang go on. */
EXPORT void nvmlmock_clear_faults(void)
{
    pthread_mutex_lock(&mock_lock);
    fault_count = 0;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&mock_lock);
}

/* How many calls hang now. */
EXPORT int nvmlmock_hanging(void)
{
    int count;

    pthread_mutex_lock(&mock_lock);
    count = hanging;
    pthread_mutex_unlock(&mock_lock);
    return count;
}

/* With the lock held. */
static struct fault *find_fault(const char *symbol, int device)
{
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        int every = device >= 0 && !strcmp(fault->symbol, "*");

        if (!fault->times || (fault->device != ANY_DEVICE && fault->device != device))
            continue;
        if (every || !strcmp(fault->symbol, symbol))
            return fault;
    }
    return NULL;
}

static int check_faults(const char *symbol, int device)
{
    struct fault *fault = find_fault(symbol, device);

    if (!fault)
        return SUCCESS;
    if (fault->times != FOR_EVER)
        fault->times--;
    if (fault->code != HANG)
        return fault->code;
    hanging++;
    pthread_cond_wait(&released, &mock_lock);
    hanging--;
    return SUCCESS;
}

static int check_device(const struct device *device)
{
    if (device->gpu < mock_gpus || device->gpu >= mock_gpus + mock_gpu_count)
        return INVALID_ARGUMENT;
    return device->compute_instance && !device->compute_instance->live ? NOT_FOUND : SUCCESS;
}

int enter(const char *symbol, const struct device *device)
{
    int code;

    pthread_mutex_lock(&mock_lock);
    code = !sessions ? UNINITIALIZED : device ? check_device(device) : SUCCESS;
    if (!code)
        code = check_faults(symbol, device ? device->gpu->index : ANY_DEVICE);
    pthread_mutex_unlock(&mock_lock);
    return code;
}

/* What NVML answers about a MIG device (mostly as about its parent); the rest must be asked of the parent. */
static int shared_with_mig(const char *call)
{
    static const char *const calls[] = {
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceSetComputeMode",
        "nvmlDeviceGetIndex",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    };

    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i], call))
            return 1;
    return 0;
}

int answer(const char *symbol, const char *call, const struct device *device, const char **value)
{
    int code = device ? enter(symbol, device) : INVALID_ARGUMENT;

    if (code)
        return code;
    if (device->gpu_instance && !shared_with_mig(call))
        return INVALID_ARGUMENT;
    *value = config_get("%d.%s", device->gpu->index, call);
    if (!*value)
        return NOT_SUPPORTED;
    return (*value)[0] == '!' ? atoi(*value + 1) : SUCCESS;
}

/* With the lock held: a new machine from the configuration. */
static int start(void)
{
    int code = config_read(getenv("NVMLMOCK_CONFIG"));

    if (code)
        return code;
    memset(mock_gpus, 0, sizeof mock_gpus);
    mock_gpu_count = (int)config_number(0, "devices");
    for (int i = 0; i < mock_gpu_count; i++) {
        mock_gpus[i].index = i;
        mock_gpus[i].device.gpu = &mock_gpus[i];
        mock_gpus[i].compute_mode = (unsigned)config_number(0, "%d.nvmlDeviceGetComputeMode", i);
        mig_reset(&mock_gpus[i]);
    }
    events_reset();
    return SUCCESS;
}

/* Forgets sessions that a failed test left open, so that the next init reads the configuration. */
EXPORT void nvmlmock_reset(void)
{
    pthread_mutex_lock(&mock_lock);
    sessions = 0;
    pthread_mutex_unlock(&mock_lock);
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    int code;

    (void)flags;
    pthread_mutex_lock(&mock_lock);
    code = check_faults(__func__, ANY_DEVICE);
    if (!code && !sessions)
        code = start();
    if (!code)
        sessions++;
    pthread_mutex_unlock(&mock_lock);
    return code;
}

EXPORT int nvmlShutdown(void)
{
    int code;

    pthread_mutex_lock(&mock_lock);
    code = sessions ? check_faults(__func__, ANY_DEVICE) : UNINITIALIZED;
    if (!code)
        sessions--;
    pthread_mutex_unlock(&mock_lock);
    return code;
}
