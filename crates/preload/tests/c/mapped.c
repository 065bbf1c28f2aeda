/* A program that knows nothing of Bifolio but GAIA's calls, which it has only if something gives them to it: it maps a
 * file on two devices with MAP_ONGPU, and does everything else that programs do with mmap at the same time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MAP_ONGPU
#define MAP_ONGPU 0x2000000
#endif

extern int macquire(void *, size_t, void *) __attribute__((weak));
extern int mrelease(void *, size_t, void *) __attribute__((weak));

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "line %d: %s is false (errno %d)\n", __LINE__, #condition, errno);  \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#define SIZE ((size_t)200000)
#define FAILS(call, code) (errno = 0, (call) == -1 && errno == (code))

static const char *path;
static char *kept;

static int acquire(char *ptr, size_t length) { return macquire ? macquire(ptr, length, NULL) : 0; }
static int release(char *ptr, size_t length) { return mrelease ? mrelease(ptr, length, NULL) : 0; }

static char *map_on(const char *device, int fd) {
    setenv("BIFOLIO_DEVICE", device, 1);
    errno = 7;
    char *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ONGPU, fd, 0);
    CHECK(mapped != MAP_FAILED && errno == 7);
    return mapped;
}

static void two_devices(void) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    char *one = map_on("host:0", fd), *two = map_on("host:1", fd);
    CHECK(one != two && close(fd) == 0);
    CHECK(acquire(one, SIZE) == 0 && acquire(two, SIZE) == 0);
    for (size_t at = 0; at < 100000; at += 2)
        one[at] = '0', two[at + 1] = '1';
    CHECK(release(one, SIZE) == 0 && release(two, SIZE) == 0);
    CHECK(acquire(one + 4095, 5000) == 0);
    for (size_t at = 4095; at < 9095; at++)
        CHECK(one[at] == (at % 2 ? '1' : '0'));
    CHECK(release(one + 4095, 5000) == 0 && msync(one, SIZE, MS_SYNC) == 0);
    char content[4];
    fd = open(path, O_RDONLY);
    CHECK(pread(fd, content, 4, 99996) == 4 && memcmp(content, "0101", 4) == 0 && close(fd) == 0);
    if (macquire) {
        CHECK(FAILS(mrelease(one, 100, NULL), EINVAL) && FAILS(macquire(one, SIZE + 4096, NULL), EINVAL));
        CHECK(FAILS(munmap(one, 4096), EINVAL) && FAILS(munmap(one + 4096, SIZE - 4096), EINVAL));
        CHECK(FAILS(macquire(&fd, 4, NULL), EINVAL) && FAILS(macquire(NULL, 0, NULL), EINVAL));
    }
    CHECK(munmap(one, SIZE) == 0 && munmap(two, SIZE) == 0);
    if (macquire)
        CHECK(FAILS(macquire(one, 1, NULL), EINVAL) && FAILS(mrelease(two, 1, NULL), EINVAL));
}

static void wrong_calls(void) {
    int fd = open(path, O_RDWR), read_only = open(path, O_RDONLY), write_only = open(path, O_WRONLY), ends[2];
    CHECK(fd >= 0 && read_only >= 0 && write_only >= 0 && pipe(ends) == 0);
#define REFUSED(length, prot, flags, fd, offset, code) \
    (errno = 0, mmap(NULL, length, prot, (flags) | MAP_ONGPU, fd, offset) == MAP_FAILED && errno == (code))
    const int both = PROT_READ | PROT_WRITE;
    CHECK(REFUSED(SIZE, both, MAP_SHARED, -1, 0, EBADF) && REFUSED(SIZE, both, MAP_SHARED, 9999, 0, EBADF));
    CHECK(REFUSED(SIZE, both, MAP_SHARED, read_only, 0, EACCES));
    CHECK(REFUSED(SIZE, PROT_READ, MAP_SHARED, write_only, 0, EACCES));
    CHECK(REFUSED(SIZE, PROT_READ, MAP_SHARED, ends[0], 0, ENODEV));
    CHECK(REFUSED(0, both, MAP_SHARED, fd, 0, EINVAL) && REFUSED(SIZE, both, MAP_SHARED, fd, 100, EINVAL));
    if (macquire) {
        CHECK(REFUSED(SIZE, both, MAP_PRIVATE, fd, 0, EINVAL));
        CHECK(REFUSED(SIZE, both, MAP_SHARED | MAP_FIXED, fd, 0, EINVAL));
        CHECK(REFUSED(SIZE, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0, EINVAL));
        setenv("BIFOLIO_DEVICE", "nonsense", 1);
        CHECK(REFUSED(SIZE, both, MAP_SHARED, fd, 0, EINVAL));
        setenv("BIFOLIO_DEVICE", "", 1);
    }
    close(fd), close(read_only), close(write_only), close(ends[0]), close(ends[1]);
}

/* Whatever has not the flag does what the system call does. */
static void calls_without_the_flag(void) {
    int fds[] = {-1, open(path, O_RDWR), open(path, O_RDONLY), open("/", O_RDONLY | O_DIRECTORY)};
    size_t lengths[] = {0, 1, 4096, 100000, (size_t)1 << 62, SIZE_MAX};
    off_t offsets[] = {0, 4096, 100, -4096};
    int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC, 0x40000000};
    unsigned kinds[] = {0, MAP_SHARED, MAP_PRIVATE, MAP_SHARED_VALIDATE, MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED | MAP_ANONYMOUS,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, MAP_SHARED_VALIDATE | 0x1000000, ~(unsigned)MAP_ONGPU};
    for (size_t f = 0; f < sizeof fds / sizeof *fds; f++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
            for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++)
                for (size_t p = 0; p < sizeof prots / sizeof *prots; p++)
                    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                        long arguments[] = {prots[p], (int)kinds[k], fds[f]};
                        errno = 0;
                        long direct = syscall(SYS_mmap, NULL, lengths[l], arguments[0], arguments[1], arguments[2], offsets[o]);
                        int code = errno;
                        if (direct != -1)
                            CHECK(munmap((void *)direct, lengths[l]) == 0);
                        errno = 0;
                        void *mapped = mmap(NULL, lengths[l], prots[p], (int)kinds[k], fds[f], offsets[o]);
                        CHECK((mapped == MAP_FAILED) == (direct == -1) && errno == code);
                        if (mapped != MAP_FAILED) {
                            int synced = msync(mapped, lengths[l], MS_ASYNC);
                            CHECK(synced == 0 || errno == EINVAL || errno == ENOMEM);
                            errno = 0;
                            CHECK(munmap(mapped, lengths[l]) == 0 && errno == 0);
                        }
                    }
    volatile uintptr_t odd = 7;
    CHECK(FAILS(munmap((void *)odd, 4096), EINVAL) && FAILS(msync((void *)odd, 4096, MS_SYNC), EINVAL));
    CHECK(FAILS(msync((void *)0, 4096, 0x7000), EINVAL));
    for (size_t f = 1; f < sizeof fds / sizeof *fds; f++)
        close(fds[f]);
}

static volatile sig_atomic_t handled;
static void handler(int number) {
    (void)number;
    int code = errno;
    void *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || munmap(mapped, 8192) != 0)
        _exit(9);
    errno = code;
    handled++;
}

static void *allocate(void *argument) {
    for (int round = 0; round < 300; round++) {
        char *large = malloc(1 << 20);
        CHECK(large != NULL);
        large[round] = 1;
        free(large);
    }
    return argument;
}

/* Handlers, allocators and other mappings come in between everywhere. */
static void everything_at_once(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t running[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&running[i], NULL, allocate, NULL) == 0);
    for (int round = 0; round < 30 || handled < 20; round++) {
        int fd = open(path, O_RDWR);
        char *mapped = map_on(round % 2 ? "host:0" : "host:1", fd);
        close(fd);
        CHECK(acquire(mapped, SIZE) == 0 && mapped[199999] == '.' && release(mapped, SIZE) == 0);
        CHECK(munmap(mapped, SIZE) == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* A child may do everything with its own memory, and nothing with its parent's mappings. */
static void children(void) {
    int fd = open(path, O_RDWR), status = 0;
    char *mapped = map_on("host:0", fd);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int right = 1;
        if (macquire) {
            right = FAILS(macquire(mapped, 1, NULL), EFAULT) && FAILS(mrelease(mapped, 1, NULL), EFAULT);
            right = right && FAILS(munmap(mapped, SIZE), EFAULT) && FAILS(msync(mapped, SIZE, MS_SYNC), EFAULT);
            right = right && mmap(NULL, SIZE, PROT_READ, MAP_SHARED | MAP_ONGPU, fd, 0) == MAP_FAILED && errno == EFAULT;
        }
        void *own = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        right = right && own != MAP_FAILED && munmap(own, 4096) == 0;
        execl("/bin/sh", "sh", "-c", right ? "exit 7" : "exit 1", (char *)NULL);
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = vfork();
    if (child == 0) {
        void *own = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        _exit(own != MAP_FAILED && munmap(own, 4096) == 0 ? 7 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(acquire(mapped, SIZE) == 0 && release(mapped, SIZE) == 0 && munmap(mapped, SIZE) == 0);
    close(fd);
}

/* Symptom: the cache wrote to a file that was not its. Cause: the program closed descriptors that it had not opened. */
static void closing_everything(void) {
    if (!macquire)
        return;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "mapped", path, "closing", (char *)NULL);
        _exit(2);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int closing(void) {
    char other[4200], content[4];
    snprintf(other, sizeof other, "%s.other", path);
    int fd = open(path, O_RDWR);
    char *mapped = map_on("host:0", fd);
    CHECK(macquire(mapped, SIZE, NULL) == 0);
    mapped[0] = 'X';
    CHECK(mrelease(mapped, SIZE, NULL) == 0);
    for (int number = 3; number < 100; number++) {
        int new = open(other, O_RDWR | O_CREAT, 0600);
        CHECK(new >= 0 && dup2(new, number) == number);
    }
    CHECK(macquire(mapped, SIZE, NULL) == -1 && msync(mapped, SIZE, MS_SYNC) == -1);
    CHECK(FAILS(munmap(mapped, SIZE), EBADF));
    CHECK(pread(50, content, 4, 0) == 0 && unlink(other) == 0);
    return 0;
}

int main(int count, char **arguments) {
    path = arguments[1];
    if (count > 2)
        return closing();
    two_devices();
    wrong_calls();
    calls_without_the_flag();
    everything_at_once();
    children();
    closing_everything();
    /* Nobody unmaps this one. */
    int fd = open(path, O_RDWR);
    kept = map_on("host:1", fd);
    CHECK(acquire(kept + 150000, 3) == 0);
    memcpy(kept + 150000, "end", 3);
    CHECK(release(kept + 150000, 3) == 0);
    puts(macquire ? "mapped on devices" : "mapped by the CPU");
    return 0;
}
