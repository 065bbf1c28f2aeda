/* A program that knows nothing of Bifolio: it reads files into device memory, and writes them from it, with the
 * C library's calls, and compares what happens with the same calls on host memory. Memory comes from the CUDA
 * driver, or, where there is none, from the allocator that the shim exports for this. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *(*device_alloc)(size_t);
static void (*device_free)(void *);
static void (*to_host)(void *host, const void *device, size_t length);
static void (*to_device)(void *device, const void *host, size_t length);

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "line %d: %s is false (errno %d)\n", __LINE__, #condition, errno);  \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* The CUDA driver, by its own names. */
static int (*cu_alloc)(uint64_t *, size_t);
static int (*cu_free)(uint64_t);
static int (*cu_down)(void *, uint64_t, size_t);
static int (*cu_up)(uint64_t, const void *, size_t);

static void *cu_context;
static int (*cu_set)(void *);

static void *cuda_alloc(size_t length) {
    /* Threads begin without a context. */
    CHECK(cu_set(cu_context) == 0);
    uint64_t memory = 0;
    CHECK(cu_alloc(&memory, length) == 0);
    return (void *)(uintptr_t)memory;
}
static void cuda_free(void *memory) { CHECK(cu_free((uint64_t)(uintptr_t)memory) == 0); }
static void cuda_down(void *host, const void *device, size_t length) {
    CHECK(cu_down(host, (uint64_t)(uintptr_t)device, length) == 0);
}
static void cuda_up(void *device, const void *host, size_t length) {
    CHECK(cu_up((uint64_t)(uintptr_t)device, host, length) == 0);
}

static int (*fenced_read)(void *, const void *, size_t);
static int (*fenced_write)(void *, const void *, size_t);
static void fenced_down(void *host, const void *device, size_t length) { CHECK(fenced_read(host, device, length) == 0); }
static void fenced_up(void *device, const void *host, size_t length) { CHECK(fenced_write(device, host, length) == 0); }

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "there is no %s here\n", name);
        exit(1);
    }
    return found;
}

/* In a context of its own, as programs of the driver interface have it, or in the primary one. */
static void use_cuda(int own_context) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "there is no CUDA driver here\n");
        exit(1);
    }
    int (*init)(unsigned) = symbol(driver, "cuInit");
    int (*get)(int *, int) = symbol(driver, "cuDeviceGet");
    int (*create)(void **, unsigned, int) = symbol(driver, "cuCtxCreate_v2");
    int (*retain)(void **, int) = symbol(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = symbol(driver, "cuCtxSetCurrent");
    void *context = NULL;
    int device = 0;
    CHECK(init(0) == 0 && get(&device, 0) == 0);
    if (own_context)
        CHECK(create(&context, 0, device) == 0);
    else
        CHECK(retain(&context, device) == 0 && set(context) == 0);
    cu_context = context, cu_set = set;
    cu_alloc = symbol(driver, "cuMemAlloc_v2");
    cu_free = symbol(driver, "cuMemFree_v2");
    cu_down = symbol(driver, "cuMemcpyDtoH_v2");
    cu_up = symbol(driver, "cuMemcpyHtoD_v2");
    device_alloc = cuda_alloc, device_free = cuda_free, to_host = cuda_down, to_device = cuda_up;
}

static void use_fenced(void) {
    device_alloc = symbol(RTLD_DEFAULT, "bifolio_fenced_alloc");
    device_free = symbol(RTLD_DEFAULT, "bifolio_fenced_free");
    fenced_read = symbol(RTLD_DEFAULT, "bifolio_fenced_read");
    fenced_write = symbol(RTLD_DEFAULT, "bifolio_fenced_write");
    to_host = fenced_down, to_device = fenced_up;
}

#define SIZE ((size_t)3 << 20)
static uint8_t *content, *seen; /* SIZE bytes of host memory each */
static uint8_t *memory;         /* SIZE bytes of device memory */
static char path[4096];

static int open_file(int flags) {
    int fd = open(path, flags, 0600);
    CHECK(fd >= 0);
    return fd;
}

static int holds(const uint8_t *device, const uint8_t *expected, size_t length) {
    memset(seen, 0x5a, length);
    to_host(seen, device, length);
    return memcmp(seen, expected, length) == 0;
}

static void poison(void) {
    memset(seen, 0xa5, SIZE);
    to_device(memory, seen, SIZE);
}

static void reads(void) {
    int fd = open_file(O_RDONLY);
    size_t offsets[] = {0, 1, 4095, 100001, SIZE - 1, SIZE, SIZE + 5};
    size_t lengths[] = {0, 1, 4096, 70001, SIZE};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            poison();
            ssize_t on_host = pread(fd, seen, lengths[k], (off_t)offsets[i]);
            ssize_t on_device = pread(fd, memory, lengths[k], (off_t)offsets[i]);
            CHECK(on_host == on_device);
            CHECK(holds(memory, content + offsets[i], on_device > 0 ? (size_t)on_device : 0));
        }
    /* The position moves as it does for host memory, also across both. */
    poison();
    CHECK(read(fd, memory, 1000) == 1000 && lseek(fd, 0, SEEK_CUR) == 1000);
    CHECK(read(fd, seen, 500) == 500 && memcmp(seen, content + 1000, 500) == 0);
    CHECK(read(fd, memory + 1000, 10000) == 10000 && lseek(fd, 0, SEEK_CUR) == 11500);
    CHECK(holds(memory + 1000, content + 1500, 10000));
    CHECK(lseek(fd, -7, SEEK_END) >= 0 && read(fd, memory, 100) == 7 && read(fd, memory, 100) == 0);
    /* A buffer that ends before the count does is filled as far as it goes, or refused. */
    ssize_t got = pread(fd, memory + SIZE - 100, 4096, 0);
    CHECK(got > 0 ? holds(memory + SIZE - 100, content, 100) : errno == EFAULT);
    close(fd);
}

static void vectors(void) {
    int fd = open_file(O_RDONLY);
    uint8_t head[100], tail[50];
    struct iovec list[] = {{head, sizeof head}, {memory, 70000}, {NULL, 0}, {memory + 80000, 1234}, {tail, sizeof tail}};
    size_t total = 100 + 70000 + 1234 + 50;
    for (int way = 0; way < 4; way++) {
        poison();
        memset(head, 0, sizeof head);
        memset(tail, 0, sizeof tail);
        CHECK(lseek(fd, 77, SEEK_SET) == 77);
        ssize_t got = way == 0   ? readv(fd, list, 5)
                      : way == 1 ? preadv(fd, list, 5, 77)
                      : way == 2 ? preadv2(fd, list, 5, 77, 0)
                                 : preadv2(fd, list, 5, -1, RWF_HIPRI);
        CHECK(got == (ssize_t)total);
        CHECK(lseek(fd, 0, SEEK_CUR) == (way == 0 || way == 3 ? 77 + (off_t)total : 77));
        CHECK(memcmp(head, content + 77, 100) == 0 && memcmp(tail, content + 77 + 71334, 50) == 0);
        CHECK(holds(memory, content + 177, 70000) && holds(memory + 80000, content + 70177, 1234));
    }
    CHECK(preadv2(fd, list, 5, 0, RWF_NOWAIT) == -1 && errno == EOPNOTSUPP);
    /* Where the compiler does not see what it would warn of. */
    volatile int too_many = 2000, negative = -1;
    CHECK(preadv(fd, list, too_many, 0) == -1 && errno == EINVAL);
    CHECK(preadv(fd, list, negative, 0) == -1 && errno == EINVAL);
    close(fd);
}

/* The first call with a new allocation finds out by itself what it is, wherever in the list it comes. */
static void first_contact_in_a_list(void) {
    int fd = open_file(O_RDONLY);
    uint8_t *fresh = device_alloc(5000);
    uint8_t head[10];
    struct iovec list[] = {{head, 10}, {fresh, 5000}};
    CHECK(preadv(fd, list, 2, 3) == 5010 && memcmp(head, content + 3, 10) == 0);
    CHECK(holds(fresh, content + 13, 5000));
    device_free(fresh);
    close(fd);
}

static void writes(void) {
    char name[4200];
    snprintf(name, sizeof name, "%s.out", path);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    to_device(memory, content, SIZE);
    CHECK(write(fd, memory, 5000) == 5000 && lseek(fd, 0, SEEK_CUR) == 5000);
    CHECK(write(fd, content + 5000, 3) == 3);
    CHECK(pwrite(fd, memory + 5003, SIZE - 5003, 5003) == (ssize_t)SIZE - 5003);
    struct iovec list[] = {{content, 10}, {memory + 10, 90}};
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, list, 2) == 100 && lseek(fd, 0, SEEK_CUR) == 100);
    CHECK(pwritev(fd, list, 2, 0) == 100 && pwritev2(fd, list, 2, 0, RWF_DSYNC) == 100);
    CHECK(pread(fd, seen, SIZE, 0) == (ssize_t)SIZE && memcmp(seen, content, SIZE) == 0);
    /* Appending: the end is the kernel's to find. */
    int appending = open(name, O_WRONLY | O_APPEND);
    CHECK(write(appending, memory, 1000) == 1000 && write(appending, memory + 1000, 1000) == 1000);
    CHECK(pread(fd, seen, 3000, SIZE) == 2000 && memcmp(seen, content, 2000) == 0);
    struct stat status;
    CHECK(fstat(fd, &status) == 0 && status.st_size == (off_t)SIZE + 2000);
    CHECK(pread(appending, memory, 10, 0) == -1 && errno == EBADF);
    close(appending);
    close(fd);
    int reading = open(name, O_RDONLY);
    CHECK(write(reading, memory, 10) == -1 && errno == EBADF);
    close(reading);
    CHECK(unlink(name) == 0);
}

/* What has no offsets goes through host memory. */
static void pipes_and_sockets(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    to_device(memory, content, 10000);
    CHECK(write(ends[1], memory, 10000) == 10000);
    CHECK(read(ends[0], seen, 10000) == 10000 && memcmp(seen, content, 10000) == 0);
    CHECK(write(ends[1], content + 5, 300) == 300);
    CHECK(read(ends[0], memory, 5000) == 300 && holds(memory, content + 5, 300));
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && read(ends[0], memory, 10) == -1 && errno == EAGAIN);
    close(ends[1]);
    CHECK(read(ends[0], memory, 10) == 0);
    close(ends[0]);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    to_device(memory, content, 1000);
    CHECK(write(ends[0], memory, 1000) == 1000 && read(ends[1], seen, 4000) == 1000 && memcmp(seen, content, 1000) == 0);
    close(ends[0]);
    close(ends[1]);
    signal(SIGPIPE, SIG_IGN);
    CHECK(pipe(ends) == 0 && close(ends[0]) == 0 && write(ends[1], memory, 10) == -1 && errno == EPIPE);
    close(ends[1]);
}

static void bad_calls(void) {
    CHECK(read(-1, memory, 10) == -1 && errno == EBADF);
    CHECK(pread(9999, memory, 10, 0) == -1 && errno == EBADF);
    int fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 10, -1) == -1 && errno == EINVAL);
    volatile uintptr_t wild[] = {8, (uintptr_t)-4096, 0};
    CHECK(pread(fd, (void *)wild[2], 10, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, (void *)wild[0], 10, 0) == -1 && errno == EFAULT);
    CHECK(pread(fd, (void *)wild[1], 10, 0) == -1 && errno == EFAULT);
    /* Memory that was given back is nobody's. */
    uint8_t *gone = device_alloc(SIZE);
    CHECK(pread(fd, gone, 100, 0) == 100);
    device_free(gone);
    CHECK(pread(fd, gone, 100, 0) == -1 && errno == EFAULT);
    errno = 7;
    CHECK(pread(fd, memory, 100, 0) == 100 && errno == 7);
    int folder = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(read(folder, memory, 10) == -1 && errno == EISDIR);
    close(folder);
    close(fd);
}

/* A number that means another file by now, and a file that lives without a name. */
static void descriptors_that_change(void) {
    char other[4200];
    snprintf(other, sizeof other, "%s.other", path);
    int second = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(second >= 0 && write(second, content + 50, 4000) == 4000);
    int fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 4000, 0) == 4000 && holds(memory, content, 4000));
    CHECK(dup2(second, fd) == fd);
    CHECK(pread(fd, memory, 4000, 0) == 4000 && holds(memory, content + 50, 4000));
    CHECK(unlink(other) == 0 && pread(fd, memory, 5000, 10) == 3990 && holds(memory, content + 60, 3990));
    CHECK(ftruncate(second, 100) == 0 && pread(fd, memory, 5000, 10) == 90);
    close(fd);
    close(second);
}

/* Nothing of ours stays behind: the number of open descriptors is what it was. */
static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void *reader(void *argument) {
    int fd = *(int *)argument;
    uint8_t *mine = device_alloc(64 << 10);
    uint8_t *check = malloc(64 << 10);
    for (unsigned round = 0; round < 200; round++) {
        size_t offset = (round * 7919u * 13u) % (SIZE - (64 << 10));
        CHECK(pread(fd, mine, 64 << 10, (off_t)offset) == 64 << 10);
        to_host(check, mine, 64 << 10);
        CHECK(memcmp(check, content + offset, 64 << 10) == 0);
    }
    free(check);
    device_free(mine);
    return NULL;
}

static void threads(void) {
    int fd = open_file(O_RDONLY);
    pthread_t running[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&running[i], NULL, reader, &fd) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    close(fd);
}

/* A child is refused its parent's device memory, and everything else works in it. */
static void forks(void) {
    int fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 100, 0) == 100);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int right = pread(fd, memory, 100, 0) == -1 && errno == EFAULT;
        right = right && pread(fd, seen, 100, 3) == 100 && memcmp(seen, content + 3, 100) == 0 && close(fd) == 0;
        execl("/bin/sh", "sh", "-c", right ? "exit 7" : "exit 1", (char *)NULL);
        _exit(2);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(pread(fd, memory, 100, 50) == 100 && holds(memory, content + 50, 100));
    close(fd);
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: device fenced|cuda|cuda-own FOLDER\n");
        return 2;
    }
    if (strcmp(arguments[1], "fenced") == 0)
        use_fenced();
    else
        use_cuda(strcmp(arguments[1], "cuda-own") == 0);
    snprintf(path, sizeof path, "%s/data", arguments[2]);
    content = malloc(SIZE);
    seen = malloc(SIZE);
    memory = device_alloc(SIZE);
    int random = open("/dev/urandom", O_RDONLY);
    for (size_t have = 0; have < SIZE;) {
        ssize_t more = read(random, content + have, SIZE - have);
        CHECK(more > 0);
        have += (size_t)more;
    }
    close(random);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(fd, content, SIZE) == (ssize_t)SIZE);
    close(fd);
    fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 1, 0) == 1); /* what stays open for good is open by now */
    close(fd);
    reads();
    vectors();
    first_contact_in_a_list();
    writes();
    pipes_and_sockets();
    bad_calls();
    descriptors_that_change();
    threads();
    int before = descriptors();
    for (int round = 0; round < 50; round++) {
        fd = open_file(O_RDWR);
        CHECK(pread(fd, memory, SIZE, 0) == (ssize_t)SIZE);
        CHECK(pwrite(fd, memory, SIZE, 0) == (ssize_t)SIZE);
        close(fd);
    }
    CHECK(descriptors() - before < 10);
    forks();
    device_free(memory);
    puts("all is well");
    return 0;
}
