/* Event sets: a bounded queue each, filled by nvmlmock_push_event. */
#include "nvmlmock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE 64

struct event {
    struct device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

struct event_set {
    struct event_set *next;
    unsigned long long masks[MAX_GPUS];
    struct event queue[QUEUE];
    unsigned head, count;
};

static struct event_set *sets;
static pthread_cond_t pushed = PTHREAD_COND_INITIALIZER;

/* With the lock held. Sets of the session before are leaked on purpose: a thread may still wait on one. */
void events_reset(void)
{
    sets = NULL;
}

EXPORT int nvmlEventSetCreate(struct event_set **out)
{
    int code = enter(__func__, NULL);

    if (code)
        return code;
    *out = calloc(1, sizeof **out);
    pthread_mutex_lock(&mock_lock);
    (*out)->next = sets;
    sets = *out;
    pthread_mutex_unlock(&mock_lock);
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
    int code = enter(__func__, NULL);

    if (code)
        return code;
    pthread_mutex_lock(&mock_lock);
    for (struct event_set **link = &sets; *link; link = &(*link)->next)
        if (*link == set) {
            *link = set->next;
            break;
        }
    pthread_mutex_unlock(&mock_lock);
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(struct device *device, unsigned long long mask, struct event_set *set)
{
    const char *supported;
    int code = answer(__func__, "nvmlDeviceGetSupportedEventTypes", device, &supported);

    if (code)
        return code;
    if (!set || mask & ~strtoull(supported, NULL, 0))
        return NOT_SUPPORTED;
    pthread_mutex_lock(&mock_lock);
    set->masks[device->gpu->index] |= mask;
    pthread_mutex_unlock(&mock_lock);
    return SUCCESS;
}

EXPORT void nvmlmock_push_event(int index, unsigned long long type, unsigned long long data, unsigned gpu_instance,
                                unsigned compute_instance)
{
    pthread_mutex_lock(&mock_lock);
    for (struct event_set *set = sets; set; set = set->next)
        if (set->masks[index] & type && set->count < QUEUE)
            set->queue[(set->head + set->count++) % QUEUE] =
                (struct event){&mock_gpus[index].device, type, data, gpu_instance, compute_instance};
    pthread_cond_broadcast(&pushed);
    pthread_mutex_unlock(&mock_lock);
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned timeout_ms)
{
    struct timespec deadline;
    int code = set ? enter(__func__, NULL) : INVALID_ARGUMENT;

    if (code)
        return code;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (deadline.tv_nsec >= 1000000000L) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&mock_lock);
    while (!code && !set->count)
        code = pthread_cond_timedwait(&pushed, &mock_lock, &deadline) ? TIMEOUT : SUCCESS;
    if (set->count) {
        code = SUCCESS;
        *event = set->queue[set->head];
        set->head = (set->head + 1) % QUEUE;
        set->count--;
    }
    pthread_mutex_unlock(&mock_lock);
    return code;
}
