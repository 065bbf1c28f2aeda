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
#include <sys/mman.h>
#include <sys/resource.h>
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
/* Where the test may make and reset contexts. */
static int (*cu_create)(void **, unsigned, int);
static int (*cu_destroy)(void *);
static int (*cu_reset)(int);
static int (*cu_retain)(void **, int);

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

/* Work that is enqueued and held up: by a kernel that spins, or a closed gate of the device that stands for one. */
static void (*hold)(void);
static void (*go_on)(void);
static void (*fill)(void *device, int value, size_t length);

static void *cu_stream; /* that work is enqueued on: NULL for the default one */
static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
static int (*cu_fill)(uint64_t, unsigned char, size_t, void *);
static int (*cu_stream_create)(void **, unsigned);
static void *cu_spin;
static volatile uint32_t *cu_flag;

static void cuda_hold(void) {
    *cu_flag = 0;
    uint64_t flag = (uint64_t)(uintptr_t)cu_flag;
    void *parameters[] = {&flag};
    CHECK(cu_launch(cu_spin, 1, 1, 1, 1, 1, 1, 0, cu_stream, parameters, NULL) == 0);
}
static void cuda_go_on(void) { *cu_flag = 1; }
static void cuda_fill(void *device, int value, size_t length) {
    CHECK(cu_fill((uint64_t)(uintptr_t)device, (unsigned char)value, length, cu_stream) == 0);
}

static int (*fenced_hold_up)(void);
static int (*fenced_fill_it)(void *, int, size_t);
static void fenced_hold(void) { CHECK(fenced_hold_up() == 0); }
static void fenced_fill(void *device, int value, size_t length) { CHECK(fenced_fill_it(device, value, length) == 0); }

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
    cu_create = symbol(driver, "cuCtxCreate_v2");
    cu_destroy = symbol(driver, "cuCtxDestroy_v2");
    int (*retain)(void **, int) = symbol(driver, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = symbol(driver, "cuCtxSetCurrent");
    void *context = NULL;
    int device = 0;
    CHECK(init(0) == 0 && get(&device, 0) == 0);
    if (own_context)
        CHECK(cu_create(&context, 0, device) == 0);
    else
        CHECK(retain(&context, device) == 0 && set(context) == 0);
    cu_retain = retain;
    if (!own_context)
        cu_reset = symbol(driver, "cuDevicePrimaryCtxReset_v2");
    cu_context = context, cu_set = set;
    cu_alloc = symbol(driver, "cuMemAlloc_v2");
    cu_free = symbol(driver, "cuMemFree_v2");
    cu_down = symbol(driver, "cuMemcpyDtoH_v2");
    cu_up = symbol(driver, "cuMemcpyHtoD_v2");
    device_alloc = cuda_alloc, device_free = cuda_free, to_host = cuda_down, to_device = cuda_up;
    int (*load)(void **, const void *) = symbol(driver, "cuModuleLoadData");
    int (*find)(void **, void *, const char *) = symbol(driver, "cuModuleGetFunction");
    int (*pinned)(void **, size_t, unsigned) = symbol(driver, "cuMemHostAlloc");
    cu_launch = symbol(driver, "cuLaunchKernel");
    cu_fill = symbol(driver, "cuMemsetD8Async");
    cu_stream_create = symbol(driver, "cuStreamCreate");
    static const char spin[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                               ".visible .entry spin(.param .u64 flag)\n{\n"
                               ".reg .u64 %at;\n.reg .u32 %value;\n.reg .pred %closed;\n"
                               "ld.param.u64 %at, [flag];\n"
                               "AGAIN: ld.volatile.global.u32 %value, [%at];\n"
                               "setp.eq.u32 %closed, %value, 0;\n@%closed bra AGAIN;\nret;\n}\n";
    void *module = NULL, *flag = NULL;
    CHECK(load(&module, spin) == 0 && find(&cu_spin, module, "spin") == 0 && pinned(&flag, 4, 2) == 0);
    cu_flag = flag;
    hold = cuda_hold, go_on = cuda_go_on, fill = cuda_fill;
}

static void use_fenced(void) {
    device_alloc = symbol(RTLD_DEFAULT, "bifolio_fenced_alloc");
    device_free = symbol(RTLD_DEFAULT, "bifolio_fenced_free");
    fenced_read = symbol(RTLD_DEFAULT, "bifolio_fenced_read");
    fenced_write = symbol(RTLD_DEFAULT, "bifolio_fenced_write");
    to_host = fenced_down, to_device = fenced_up;
    fenced_hold_up = symbol(RTLD_DEFAULT, "bifolio_fenced_hold");
    fenced_fill_it = symbol(RTLD_DEFAULT, "bifolio_fenced_fill");
    hold = fenced_hold, go_on = symbol(RTLD_DEFAULT, "bifolio_fenced_go_on"), fill = fenced_fill;
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

/* Nothing of ours stays behind: the number of open descriptors is what it was. */
static int descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Memory that no call has used before, so that nothing of it is known yet. Each test that speaks of first contact
 * has its own, in a block of addresses of its own where the allocator gives large ones. */
static uint8_t *fresh(void) { return device_alloc((size_t)8 << 20); }

/* Symptom: a message was lost, and a read blocked. Cause: the kernel was asked to fill device memory first, and a
 * socket gives a message away before it finds that it cannot. */
static void messages_are_neither_lost_nor_joined(void) {
    int ends[2];
    uint8_t *first = fresh(), *second = fresh();
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0 && write(ends[0], "hello", 5) == 5);
    CHECK(read(ends[1], first, 100) == 5 && holds(first, (const uint8_t *)"hello", 5));
    close(ends[0]);
    close(ends[1]);
    alarm(20);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && write(ends[0], "12345", 5) == 5);
    uint8_t head[5];
    struct iovec list[] = {{head, 5}, {second, 100}};
    CHECK(readv(ends[1], list, 2) == 5 && memcmp(head, "12345", 5) == 0);
    alarm(0);
    close(ends[0]);
    close(ends[1]);
    device_free(first);
    device_free(second);
}

/* Symptom: a crash. Cause: host memory of a list that went through a buffer was copied here and not by the kernel. */
static void bad_host_memory_in_a_list_is_the_kernels_to_refuse(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    volatile uintptr_t wild = 8;
    struct iovec list[] = {{memory, 10}, {(void *)wild, 10}};
    ssize_t moved = writev(ends[1], list, 2);
    CHECK(moved == 10 || (moved == -1 && errno == EFAULT));
    struct iovec only_wild[] = {{(void *)wild, 10}, {NULL, 0}};
    CHECK(writev(ends[1], only_wild, 2) == -1 && errno == EFAULT);
    const struct iovec *volatile nowhere = (const struct iovec *)wild;
    CHECK(writev(ends[1], nowhere, 2) == -1 && errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
}

/* Symptom: what was meant for standard error landed in a data file. Cause: descriptors of the shim took the numbers
 * of standard streams that were closed. */
static void closed_standard_streams_stay_closed(void) {
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "device", "daemon", getenv("WAY"), path, (char *)NULL);
        _exit(2);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int daemon_like(void) {
    int fd = open(path, O_RDWR);
    if (fd < 0)
        return 3;
    uint8_t *mine = device_alloc(1 << 20);
    close(0);
    close(1);
    close(2);
    if (pread(fd, mine, 1 << 20, 0) != 1 << 20 || pwrite(fd, mine, 1 << 20, 0) != 1 << 20)
        return 4;
    /* A driver may open files of its own, so that there may be something now. */
    ssize_t written = write(2, "text", 4);
    uint8_t *host = malloc(1 << 20);
    to_host(host, mine, 1 << 20);
    uint8_t now[4];
    return pread(fd, now, 4, 0) == 4 && memcmp(now, host, 4) == 0 && (cu_create || written == -1) ? 0 : 5;
}

/* Symptom: reads and writes went to another file. Cause: the program had closed descriptors that were not its. */
static void closing_everything_is_survived(void) {
    char other[4200];
    snprintf(other, sizeof other, "%s.range", path);
    int fd = open_file(O_RDWR);
    /* Longer than what goes by the program's own descriptor. */
    CHECK(pread(fd, memory, 300000, 0) == 300000);
    uint8_t *mine = fresh();
    struct stat data, status;
    CHECK(fstat(fd, &data) == 0);
    int second[8], closed = 0;
    for (int number = 3; number < 1024 && closed < 8; number++)
        if (number != fd && fstat(number, &status) == 0 && status.st_ino == data.st_ino && status.st_dev == data.st_dev) {
            int new = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
            CHECK(new >= 0 && dup2(new, number) == number);
            close(new);
            second[closed++] = number;
        }
    CHECK(closed > 0);
    CHECK(pread(fd, mine, 4000, 50) == 4000 && holds(mine, content + 50, 4000));
    CHECK(pwrite(fd, mine, 4000, 50) == 4000);
    CHECK(fstat(second[0], &status) == 0 && status.st_size == 0);
    for (int i = 0; i < closed; i++)
        close(second[i]);
    CHECK(unlink(other) == 0);
    device_free(mine);
    close(fd);
}

/* A full disk, or a limit: what fits is written, and the count says how much. */
static void limits(void) {
    char name[4200];
    snprintf(name, sizeof name, "%s.limited", path);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 1000000;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    to_device(memory, content, SIZE);
    CHECK(pwrite(fd, memory, SIZE, 0) == 1000000);
    CHECK(pwrite(fd, memory, 10, 1000000) == -1 && errno == EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(pread(fd, seen, SIZE, 0) == 1000000 && memcmp(seen, content, 1000000) == 0);
    CHECK(pwrite(fd, memory + 1000000, 10, 1000000) == 10);
    close(fd);
    CHECK(unlink(name) == 0);
}

/* Records of several appenders stay whole, and long ones are written to their end. */
static void appending(void) {
    char name[4200];
    snprintf(name, sizeof name, "%s.log", path);
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3000; i++)
            if (write(fd, "xxxxxxxxxx", 10) != 10)
                _exit(1);
        _exit(0);
    }
    for (int i = 0; i < 100; i++) {
        uint8_t *body = device_alloc(5000);
        to_device(body, content, 5000);
        struct iovec record[] = {{content + 5000, 10}, {body, 5000}};
        CHECK(writev(fd, record, 2) == 5010);
        device_free(body);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    uint8_t *all = malloc(1000000);
    ssize_t length = pread(fd, all, 1000000, 0);
    CHECK(length == 100 * 5010 + 30000);
    int records = 0;
    for (ssize_t at = 0; at < length;) {
        int is_record = length - at >= 5010 && memcmp(all + at, content + 5000, 10) == 0;
        CHECK(is_record ? memcmp(all + at + 10, content, 5000) == 0 : memcmp(all + at, "xxxxxxxxxx", 10) == 0);
        records += is_record;
        at += is_record ? 5010 : 10;
    }
    CHECK(records == 100);
    free(all);
    uint8_t *large = device_alloc((size_t)70 << 20);
    CHECK(write(fd, large, (size_t)70 << 20) == (ssize_t)70 << 20);
    device_free(large);
    close(fd);
    CHECK(unlink(name) == 0);
}

/* A child of vfork shares memory with its parent, and closes descriptors of its own. */
static void vfork_children(void) {
    int fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 100, 0) == 100);
    int before = descriptors();
    for (int round = 0; round < 10; round++) {
        CHECK(pread(fd, memory, 100, 0) == 100);
        pid_t child = vfork();
        if (child == 0) {
            close(fd);
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
    }
    CHECK(descriptors() - before < 5);
    close(fd);
}

static pthread_t main_thread;
static volatile int on_another_thread;
static void handler(int number) {
    (void)number;
    if (!pthread_equal(pthread_self(), main_thread))
        on_another_thread = 1;
}

/* Symptom: a handler ran while its signal was blocked. Cause: it ran on a thread of the shim's. */
static void signals_stay_with_the_programs_threads(void) {
    main_thread = pthread_self();
    signal(SIGUSR1, handler);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(kill(getpid(), SIGUSR1) == 0);
    /* What another thread might handle would not wait for this one. */
    sigset_t waiting;
    CHECK(sigpending(&waiting) == 0 && (sigismember(&waiting, SIGUSR1) || cu_create));
    CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
    /* A driver has threads of its own, which do as they like. */
    CHECK(!on_another_thread || cu_create);
}

/* Symptom: a lock was gone. Cause: the shim closed its own descriptor of a file that the program still had open. */
static void record_locks_are_kept(void) {
    int fd = open_file(O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0 && pread(fd, memory, 100, 0) == 100);
    char name[4200];
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "%s.%d", path, i);
        int other = open(name, O_RDWR | O_CREAT, 0600);
        CHECK(other >= 0 && write(other, content, 100) == 100 && pread(other, memory, 100, 0) == 100);
        CHECK(unlink(name) == 0 && close(other) == 0);
    }
    pid_t child = fork();
    if (child == 0) {
        struct flock asked = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        _exit(fcntl(fd, F_GETLK, &asked) == 0 && asked.l_type == F_WRLCK ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(fd);
}

/* Symptom: a crash, and memory that was there was refused. Cause: a context that the program destroyed lent its
 * handle to the next one. */
static void contexts_come_and_go(void) {
    if (!cu_create)
        return;
    int fd = open_file(O_RDONLY);
    for (int round = 0; round < 12; round++) {
        void *mine = NULL;
        uint64_t buffer = 0;
        CHECK(cu_create(&mine, 0, 0) == 0 && cu_alloc(&buffer, 1 << 20) == 0);
        CHECK(pread(fd, (void *)(uintptr_t)buffer, 1 << 20, round) == 1 << 20);
        CHECK(cu_down(seen, buffer, 1 << 20) == 0 && memcmp(seen, content + round, 1 << 20) == 0);
        CHECK(cu_free(buffer) == 0 && cu_destroy(mine) == 0);
    }
    close(fd);
    CHECK(cu_set(cu_context) == 0);
}

/* `cudaDeviceReset` takes everything of the device's away. */
static void resets(void) {
    if (!cu_reset)
        return;
    int fd = open_file(O_RDONLY);
    CHECK(pread(fd, memory, 100, 0) == 100 && cu_reset(0) == 0);
    CHECK(cu_retain(&cu_context, 0) == 0);
    memory = device_alloc(SIZE);
    for (int round = 0; round < 3; round++)
        CHECK(pread(fd, memory, SIZE, 0) == (ssize_t)SIZE && holds(memory, content, SIZE));
    close(fd);
}

/* Device memory in the same 2 MiB as memory of the CPU's is taken for the latter at first: the kernel refuses it, and
 * the call is carried out afterwards. Its success left EFAULT behind. Drivers leave such blocks to themselves; the device
 * that stands for one does not. */
static void a_refusal_of_the_kernels_leaves_no_trace(int fd) {
    const size_t page = 4096, size = 16 * page;
    for (int tries = 0; tries < 64; tries++) {
        uint8_t *device = device_alloc(size);
        void *free = device - page;
        uint8_t *host = mmap(free, page, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        int is_beside = host == free && (uintptr_t)host >> 21 == (uintptr_t)device >> 21;
        if (is_beside) {
            struct iovec list[] = {{device, size}};
            errno = 7;
            CHECK(pread(fd, host, page, 0) == (ssize_t)page && errno == 7);
            CHECK(pread(fd, device, size, 0) == (ssize_t)size && errno == 7 && holds(device, content, size));
            CHECK(pread(fd, host, page, 0) == (ssize_t)page);
            CHECK(preadv(fd, list, 1, 3) == (ssize_t)size && errno == 7 && holds(device, content + 3, size));
        }
        if (host != MAP_FAILED)
            munmap(host, page);
        if (is_beside) {
            device_free(device);
            return;
        }
        /* Kept: the next one lies elsewhere. */
    }
    CHECK(!fenced_read);
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
    gone = fresh();
    CHECK(pread(fd, gone, 0, 0) == 0 && pread(fd, gone, 100, 0) == 100 && errno == 7);
    device_free(gone);
    a_refusal_of_the_kernels_leaves_no_trace(fd);
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

static void *later(void *argument) {
    usleep(50000);
    go_on();
    return argument;
}

/* A fill or a kernel that was enqueued before a call is over before it, on the default stream as on all that wait for
 * it. Calls used streams of their own, which knew nothing of it: a read returned with what the fill wrote afterwards, and
 * a write stored what was there before the kernel, both with success. */
static void work_that_was_enqueued_before_comes_before(void) {
    enum { LONGEST = 8 << 20 };
    char file[4110];
    snprintf(file, sizeof file, "%s.order", path);
    uint8_t *bytes = malloc(LONGEST), *back = malloc(LONGEST), *device = device_alloc(LONGEST);
    for (size_t at = 0; at < LONGEST; at++)
        bytes[at] = content[at % SIZE] ^ (uint8_t)(at / SIZE);
    void *streams[3] = {NULL, (void *)2, NULL}; /* the default one, this thread's, and one that waits for the default one */
    int count = 1;
    if (cu_stream_create) {
        CHECK(cu_stream_create(&streams[2], 0) == 0);
        count = 3;
    }
    size_t lengths[] = {4096, 65536, 65537, 262144, 1 << 20, LONGEST};
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            size_t length = lengths[k];
            cu_stream = streams[i];
            int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
            CHECK(fd >= 0 && pwrite(fd, bytes, length, 0) == (ssize_t)length);
            for (int warm = 0; warm < 2; warm++) {
                pthread_t other;
                hold();
                fill(device, 0x5a, length);
                CHECK(pthread_create(&other, NULL, later, NULL) == 0);
                CHECK(pread(fd, device, length, 0) == (ssize_t)length);
                CHECK(pthread_join(other, NULL) == 0);
                usleep(20000);
                to_host(back, device, length);
                CHECK(memcmp(back, bytes, length) == 0);
            }
            pthread_t other;
            hold();
            fill(device, 0x77, length);
            CHECK(pthread_create(&other, NULL, later, NULL) == 0);
            CHECK(pwrite(fd, device, length, 0) == (ssize_t)length);
            CHECK(pthread_join(other, NULL) == 0);
            CHECK(pread(fd, back, length, 0) == (ssize_t)length);
            for (size_t at = 0; at < length; at++)
                CHECK(back[at] == 0x77);
            close(fd);
        }
    /* Through host memory, too. */
    cu_stream = NULL;
    int ends[2];
    pthread_t other;
    CHECK(pipe(ends) == 0);
    hold();
    fill(device, 0x33, 4096);
    CHECK(pthread_create(&other, NULL, later, NULL) == 0);
    CHECK(write(ends[1], device, 4096) == 4096 && pthread_join(other, NULL) == 0);
    CHECK(read(ends[0], back, 4096) == 4096 && back[0] == 0x33 && back[4095] == 0x33);
    close(ends[0]), close(ends[1]);
    unlink(file);
    device_free(device), free(bytes), free(back);
}

/* Short reads of a file that is cached go by the program's own descriptor: whatever that has become meanwhile. */
static void short_reads_of_what_is_cached(void) {
    int fd = open_file(O_RDONLY);
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at + 70000 < SIZE; at += 69999) {
            poison();
            CHECK(pread(fd, memory, 70000, (off_t)at) == 70000 && holds(memory, content + at, 70000));
        }
    /* By position, over the end, and behind it. */
    CHECK(lseek(fd, -100000, SEEK_END) >= 0);
    CHECK(read(fd, memory, 65536) == 65536 && holds(memory, content + SIZE - 100000, 65536));
    CHECK(read(fd, memory, 65536) == 34464 && holds(memory, content + SIZE - 34464, 34464));
    CHECK(read(fd, memory, 65536) == 0 && lseek(fd, 0, SEEK_CUR) == (off_t)SIZE);
    errno = 0;
    CHECK(pread(fd, memory, 10, -1) == -1 && errno == EINVAL);
    /* What the page cache has lost. */
    CHECK(fsync(fd) == 0 && posix_fadvise(fd, 65536, 65536, POSIX_FADV_DONTNEED) == 0);
    poison();
    CHECK(pread(fd, memory, 200000, 0) == 200000 && holds(memory, content, 200000));
    /* Another file by the same number, then none that can be read, then none. */
    char file[4110];
    snprintf(file, sizeof file, "%s.other", path);
    int other = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(other >= 0 && write(other, content + 5000, 9000) == 9000);
    CHECK(pread(fd, memory, 4096, 0) == 4096 && dup2(other, fd) == fd);
    poison();
    CHECK(pread(fd, memory, 65536, 0) == 9000 && holds(memory, content + 5000, 9000));
    CHECK(ftruncate(other, 100) == 0 && pread(fd, memory, 4096, 0) == 100);
    int write_only = open(file, O_WRONLY);
    CHECK(write_only >= 0 && dup2(write_only, fd) == fd);
    errno = 0;
    CHECK(pread(fd, memory, 4096, 0) == -1 && errno == EBADF);
    close(write_only), close(other), close(fd), unlink(file);
    errno = 0;
    CHECK(pread(fd, memory, 4096, 0) == -1 && errno == EBADF);
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
    int is_daemon = strcmp(arguments[1], "daemon") == 0;
    const char *way = arguments[is_daemon ? 2 : 1];
    if (strcmp(way, "fenced") == 0)
        use_fenced();
    else
        use_cuda(strcmp(way, "cuda-own") == 0);
    if (is_daemon) {
        snprintf(path, sizeof path, "%s", arguments[3]);
        return daemon_like();
    }
    setenv("WAY", way, 1);
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
    short_reads_of_what_is_cached();
    work_that_was_enqueued_before_comes_before();
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
    messages_are_neither_lost_nor_joined();
    bad_host_memory_in_a_list_is_the_kernels_to_refuse();
    closed_standard_streams_stay_closed();
    closing_everything_is_survived();
    limits();
    appending();
    vfork_children();
    signals_stay_with_the_programs_threads();
    record_locks_are_kept();
    contexts_come_and_go();
    resets();
    forks();
    device_free(memory);
    puts("all is well");
    return 0;
}
