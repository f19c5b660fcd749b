/* Makes one system call of a program fail: loaded in front of libc (LD_PRELOAD) by tools/faults/sweep.py.

   Calls on paths below one folder are counted by kind (open, write, fsync, rename), and so are the
   blocks of memory that tensors ask for (memory). The one that was asked for fails with the given
   error, or, for a write, takes half of what it was given, or the process is killed there, a write
   half done. A lasting fault fails every call of its kind from there on. Nothing is changed until `faults_arm` is called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, RENAME, MEMORY, KINDS };
/* instead of an error: the write takes half; the process ends; somebody types Ctrl-C */
enum { HALF = -1, KILL = -2, INTERRUPT = -3 };

static char root[PATH_MAX];
static size_t root_length;
static atomic_long counted[KINDS];
static int armed_kind = -1;
static long armed_number;
static int armed_error;
static int armed_lasts;
static atomic_long fired;

void faults_arm(const char *folder, int kind, long number, int error, int lasts) {
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
    for (int i = 0; i < KINDS; i++) counted[i] = 0;
    fired = 0;
    armed_kind = kind;
    armed_number = number;
    armed_error = error;
    armed_lasts = lasts;
}

void faults_disarm(void) {
    armed_kind = -1;
    root_length = 0;
}

long faults_counted(int kind) { return counted[kind]; }

long faults_fired(void) { return fired; }

static int below(const char *path) {
    if (!root_length || !path) return 0;
    char absolute[PATH_MAX];
    if (path[0] != '/') {
        if (!getcwd(absolute, sizeof absolute)) return 0;
        size_t used = strlen(absolute);
        snprintf(absolute + used, sizeof absolute - used, "/%s", path);
        path = absolute;
    }
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int open_below(int fd) {
    if (!root_length) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

/* 0: let it pass; an error number: fail with it; HALF: write half; KILL: write half, then `end` */
static int verdict(int kind) {
    long number = ++counted[kind];
    if (kind != armed_kind) return 0;
    if (number != armed_number && !(armed_lasts && number > armed_number)) return 0;
    fired++;
    if (armed_error == INTERRUPT) {
        kill(getpid(), SIGINT);
        return 0;
    }
    if (armed_error == KILL && kind != WRITE) kill(getpid(), SIGKILL);
    return armed_error;
}

/* how much a disturbed write takes */
static size_t half(size_t size) { return size > 1 ? size / 2 : size; }

/* a write was cut: the process dies there, if that was asked for */
static ssize_t cut(int error, ssize_t done) {
    if (error == KILL) kill(getpid(), SIGKILL);
    return done;
}

static int refused(int kind) {
    int error = verdict(kind);
    if (error > 0) {
        errno = error;
        return 1;
    }
    return 0;
}

#define NEXT(name, type) \
    static __typeof__(type) next; \
    if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, #name)

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name, int (*)(const char *, int, ...)); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        if (below(path) && refused(OPEN)) return -1; \
        return next(path, flags, mode); \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(name, int (*)(int, const char *, int, ...)); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        int inside = path[0] == '/' || folder == AT_FDCWD ? below(path) : open_below(folder); \
        if (inside && refused(OPEN)) return -1; \
        return next(folder, path, flags, mode); \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write, ssize_t (*)(int, const void *, size_t));
    if (!open_below(fd)) return next(fd, data, size);
    int error = verdict(WRITE);
    if (error < 0) return cut(error, next(fd, data, half(size)));
    if (error) {
        errno = error;
        return -1;
    }
    return next(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev, ssize_t (*)(int, const struct iovec *, int));
    if (open_below(fd)) {
        int error = verdict(WRITE);
        if (error < 0) return cut(error, next(fd, parts, half(count)));
        if (error) {
            errno = error;
            return -1;
        }
    }
    return next(fd, parts, count);
}

#define PWRITER(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t at) { \
        NEXT(name, ssize_t (*)(int, const void *, size_t, off_t)); \
        if (open_below(fd)) { \
            int error = verdict(WRITE); \
            if (error < 0) return cut(error, next(fd, data, half(size), at)); \
            if (error) { \
                errno = error; \
                return -1; \
            } \
        } \
        return next(fd, data, size, at); \
    }
PWRITER(pwrite)
PWRITER(pwrite64)

/* copies inside the kernel count as writes; half a copy is what the caller has to expect anyway */
#define SENDER(name) \
    ssize_t name(int to, int from, off_t *at, size_t size) { \
        NEXT(name, ssize_t (*)(int, int, off_t *, size_t)); \
        if (open_below(to)) { \
            int error = verdict(WRITE); \
            if (error < 0) return cut(error, next(to, from, at, half(size))); \
            if (error) { \
                errno = error; \
                return -1; \
            } \
        } \
        return next(to, from, at, size); \
    }
SENDER(sendfile)
SENDER(sendfile64)

int fsync(int fd) {
    NEXT(fsync, int (*)(int));
    if (open_below(fd) && refused(FSYNC)) return -1;
    return next(fd);
}

int fdatasync(int fd) {
    NEXT(fdatasync, int (*)(int));
    if (open_below(fd) && refused(FSYNC)) return -1;
    return next(fd);
}

int rename(const char *from, const char *to) {
    NEXT(rename, int (*)(const char *, const char *));
    if (below(to) && refused(RENAME)) return -1;
    return next(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    NEXT(renameat, int (*)(int, const char *, int, const char *));
    int inside = to[0] == '/' || b == AT_FDCWD ? below(to) : open_below(b);
    if (inside && refused(RENAME)) return -1;
    return next(a, from, b, to);
}

/* what torch and Arrow ask for when a tensor or a column is made; Python itself asks elsewhere */
int posix_memalign(void **block, size_t alignment, size_t size) {
    NEXT(posix_memalign, int (*)(void **, size_t, size_t));
    if (root_length) {
        int error = verdict(MEMORY);
        if (error > 0) return error;
    }
    return next(block, alignment, size);
}
