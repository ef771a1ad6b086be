/* Preloaded into the processes of a cluster's nodes and clients: a wall clock of their own, slow
 * syncs of files, and a source address of their own. What applies is read from a shared file
 * (POSTROAD_FAULTS_FILE, written by faults.py), so that it changes while they run.
 *
 * Only the wall clock is changed. The monotonic clock stays, as it does when a machine's clock is
 * set; waits until a point of the wall clock (none in the JVM's, Erlang's or Python's timers) go by
 * the real one. Statically linked programs are out of reach. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#define SECOND 1000000000LL

struct controls {
    volatile uint64_t sequence; /* odd while the writer changes the others */
    volatile int64_t anchor_ns; /* the real time at which the offset below holds */
    volatile int64_t offset_ns;
    volatile int64_t drift_ppb; /* how much faster than real the clock runs from then on */
    volatile uint64_t sync_delay_us;
};

static const struct controls none;
static const struct controls *controls = &none;
static struct in_addr source;

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_msync)(void *, size_t, int);
static int (*real_connect)(int, const struct sockaddr *, socklen_t);

__attribute__((constructor)) static void set_up(void)
{
    static int done;
    if (done)
        return;
    done = 1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_msync = dlsym(RTLD_NEXT, "msync");
    real_connect = dlsym(RTLD_NEXT, "connect");
    const char *path = getenv("POSTROAD_FAULTS_FILE"), *address = getenv("POSTROAD_FAULTS_SOURCE");
    if (address)
        inet_pton(AF_INET, address, &source);
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof *controls, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        controls = found;
}

static void fake(struct timespec *now)
{
    uint64_t before;
    int64_t anchor, offset, drift;
    do {
        before = controls->sequence;
        __sync_synchronize();
        anchor = controls->anchor_ns;
        offset = controls->offset_ns;
        drift = controls->drift_ppb;
        __sync_synchronize();
    } while (before % 2 || before != controls->sequence);
    if (!offset && !drift)
        return;
    int64_t time = now->tv_sec * SECOND + now->tv_nsec;
    time += offset + (int64_t)((__int128)(time - anchor) * drift / SECOND);
    now->tv_sec = time / SECOND;
    now->tv_nsec = time % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    set_up(); /* libraries that are loaded earlier may ask in their own constructors */
    int result = real_clock_gettime(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        fake(now);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result)
        *result = exact.tv_sec;
    return exact.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, now) ? base : 0;
}

static void dawdle(void)
{
    uint64_t delay = controls->sync_delay_us;
    struct timespec rest = {delay / 1000000, delay % 1000000 * 1000};
    while (delay && nanosleep(&rest, &rest) && errno == EINTR)
        ;
}

int fsync(int file)
{
    dawdle();
    return real_fsync(file);
}

int fdatasync(int file)
{
    dawdle();
    return real_fdatasync(file);
}

int msync(void *address, size_t length, int flags)
{
    if (flags & MS_SYNC)
        dawdle();
    return real_msync(address, length, flags);
}

int connect(int socket, const struct sockaddr *target, socklen_t length)
{
    const struct sockaddr_in *wanted = (const struct sockaddr_in *)target;
    const uint32_t subnet = htonl(0xffffff00);
    set_up();
    if (source.s_addr && target->sa_family == AF_INET
        && (wanted->sin_addr.s_addr & subnet) == (source.s_addr & subnet)) {
        struct sockaddr_in own = {.sin_family = AF_INET}, bound = {0};
        socklen_t size = sizeof bound;
        int late = 1;
        if (!getsockname(socket, (struct sockaddr *)&bound, &size) && !bound.sin_addr.s_addr) {
            own.sin_addr = source;
            setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof late);
            bind(socket, (struct sockaddr *)&own, sizeof own);
        }
    }
    return real_connect(socket, target, length);
}
