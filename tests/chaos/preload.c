/* Counts the file operations below one folder and makes the n-th fail, for tests.chaos.
 *
 * Loaded with LD_PRELOAD and inactive until chaos_arm. A process that is started by exec arms itself
 * from CHAOS_ROOT, CHAOS_KIND and CHAOS_AT, with a count that starts at 0.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { COUNT, FULL, QUOTA, READ_ONLY, EIO_ONCE, EIO_STAYS, SHORT, KILL, TORN, TERM, INT, HUP };
enum op { READ, WRITE, OPEN_READ, OPEN_WRITE, SYNC, RENAME, UNLINK, MKDIR, TRUNCATE };

static char root[PATH_MAX];
static size_t root_length;
static enum kind kind;
static long at, own_count;
static long *count = &own_count;
static bool tracked[65536];

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* n: the number of the operation that fails; counter: where to count, shared with the parent. */
void chaos_arm(const char *folder, int what, long n, long *counter)
{
    kind = what;
    at = n;
    if (counter) count = counter;
    *count = 0;
    memset(tracked, 0, sizeof tracked);
    root_length = strlen(folder);
    strncpy(root, folder, sizeof root - 1);
}

__attribute__((constructor)) static void from_environment(void)
{
    const char *folder = getenv("CHAOS_ROOT"), *what = getenv("CHAOS_KIND"), *n = getenv("CHAOS_AT");
    if (folder && what && n) chaos_arm(folder, atoi(what), atol(n), NULL);
}

static bool below_root(const char *path)
{
    char whole[2 * PATH_MAX];
    if (!root_length || !path) return false;
    if (path[0] != '/') {
        if (!getcwd(whole, PATH_MAX)) return false;
        strcat(whole, "/");
        strncat(whole, path, PATH_MAX - 1);
        path = whole;
    }
    return strncmp(path, root, root_length) == 0;
}

static bool is_tracked(int fd)
{
    return root_length && fd >= 0 && fd < (int)(sizeof tracked) && tracked[fd];
}

/* The error of this operation; 0: none; -1: do half of it; -2: do half of it, then end. */
static int fault(enum op op)
{
    long n = __sync_add_and_fetch(count, 1);
    if (kind == COUNT || n < at) return 0;
    bool changes = op != READ && op != OPEN_READ && op != SYNC;
    bool grows = op == WRITE || op == OPEN_WRITE || op == MKDIR || op == SYNC;
    switch (kind) {
    case FULL: return grows ? ENOSPC : 0;
    case QUOTA: return grows ? EDQUOT : 0;
    case READ_ONLY: return changes ? EROFS : 0;
    case EIO_STAYS: return EIO;
    case SHORT: return op == WRITE ? -1 : 0;
    default: break;
    }
    if (n > at) return 0;
    switch (kind) {
    case EIO_ONCE: return EIO;
    case TORN: if (op == WRITE) return -2; /* fall through */
    case KILL: kill(getpid(), SIGKILL); break;
    case TERM: raise(SIGTERM); break;
    case INT: raise(SIGINT); break;
    case HUP: raise(SIGHUP); break;
    default: break;
    }
    return 0;
}

#define FAIL(op) do { int error = fault(op); if (error > 0) { errno = error; return -1; } } while (0)

static int opened(int fd, bool ours)
{
    if (fd >= 0 && fd < (int)sizeof tracked) tracked[fd] = ours;
    return fd;
}

#define OPEN(name, parameters, path, ...) \
    int name parameters \
    { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); \
        } \
        bool ours = below_root(path); \
        if (ours) FAIL((flags & (O_WRONLY | O_RDWR | O_CREAT)) ? OPEN_WRITE : OPEN_READ); \
        return opened(real(__VA_ARGS__, flags, mode), ours); \
    }

OPEN(open, (const char *path, int flags, ...), path, path)
OPEN(open64, (const char *path, int flags, ...), path, path)
OPEN(openat, (int dir, const char *path, int flags, ...), dir == AT_FDCWD ? path : NULL, dir, path)
OPEN(openat64, (int dir, const char *path, int flags, ...), dir == AT_FDCWD ? path : NULL, dir, path)

int close(int fd)
{
    REAL(close);
    opened(fd, false);
    return real(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    if (is_tracked(fd)) {
        int error = fault(WRITE);
        if (error > 0) { errno = error; return -1; }
        if (error < 0 && size > 1) size /= 2;
        if (error == -2) {
            if (real(fd, data, size) >= 0) kill(getpid(), SIGKILL);
        }
    }
    return real(fd, data, size);
}

ssize_t read(int fd, void *data, size_t size)
{
    REAL(read);
    if (is_tracked(fd)) FAIL(READ);
    return real(fd, data, size);
}

#define ON_FILE(name, op, parameters, ...) \
    int name parameters { REAL(name); if (is_tracked(fd)) FAIL(op); return real(__VA_ARGS__); }
#define ON_PATH(name, op, parameters, ...) \
    int name parameters { REAL(name); if (below_root(path)) FAIL(op); return real(__VA_ARGS__); }

ON_FILE(fsync, SYNC, (int fd), fd)
ON_FILE(fdatasync, SYNC, (int fd), fd)
ON_FILE(ftruncate, TRUNCATE, (int fd, off_t size), fd, size)
ON_FILE(ftruncate64, TRUNCATE, (int fd, off64_t size), fd, size)
ON_PATH(rename, RENAME, (const char *path, const char *to), path, to)
ON_PATH(unlink, UNLINK, (const char *path), path)
ON_PATH(mkdir, MKDIR, (const char *path, mode_t mode), path, mode)

int renameat(int from, const char *path, int into, const char *to)
{
    REAL(renameat);
    if (from == AT_FDCWD && below_root(path)) FAIL(RENAME);
    return real(from, path, into, to);
}
