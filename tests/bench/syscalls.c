/* Counts calls that make something durable or visible to others, for LD_PRELOAD. The counters lie in a file that is
   mapped shared, so that another process can read them at any time. Order: see tests/bench/syscalls.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FSYNC, FDATASYNC, RENAME, UNLINK, FLOCK, COUNTERS };
static unsigned long *counters;

__attribute__((constructor)) static void open_counters(void) {
    const char *path = getenv("BENCH_SYSCALLS");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, COUNTERS * sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) counters = mapped;
}

static void count(int which) {
    if (counters) __atomic_fetch_add(&counters[which], 1, __ATOMIC_RELAXED);
}

#define COUNTED(which, name, parameters, arguments)                     \
    int name parameters {                                               \
        static int(*real) parameters;                                   \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);           \
        count(which);                                                   \
        return real arguments;                                          \
    }

COUNTED(FSYNC, fsync, (int fd), (fd))
COUNTED(FDATASYNC, fdatasync, (int fd), (fd))
COUNTED(RENAME, rename, (const char *from, const char *to), (from, to))
COUNTED(RENAME, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
COUNTED(UNLINK, unlink, (const char *path), (path))
COUNTED(UNLINK, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
COUNTED(FLOCK, flock, (int fd, int how), (fd, how))
