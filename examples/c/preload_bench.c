/* Measures pread in a loop and knows nothing of Bifolio: run it with and without the shim.
 *
 *   cc -O2 preload_bench.c -ldl -o preload_bench
 *   echo "read 4096 100000 0" | ./preload_bench FILE host
 *   echo "read 1048576 1000 0" | LD_PRELOAD=libbifolio_preload.so ./preload_bench FILE cuda
 *
 * The memory that is read into is the host's (host), a GPU's (cuda, through the driver's own library), or, for
 * machines without one, memory of the shim that only the shim can fill (fenced). With plain, which needs no shim,
 * the program does what it would do by itself: pread into page-locked memory, and a copy that the driver waits for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "requests.h"

static struct {
    int file;
    void *memory;
    uint64_t address;
    int (*cuda_allocate)(uint64_t *, size_t);
    int (*cuda_free)(uint64_t);
    int (*cuda_copy)(void *, uint64_t, size_t);
    int (*cuda_upload)(uint64_t, const void *, size_t);
    int (*cuda_pinned)(void **, size_t, unsigned);
    int (*cuda_free_pinned)(void *);
    void *pinned;
    void *(*fenced_allocate)(size_t);
    void (*fenced_free)(void *);
    int (*fenced_read)(void *, const void *, size_t);
} bench;

/* ISO C has no conversion from object pointers to functions, POSIX requires one to work. */
#define FIND(function, library, name) (*(void **)&(function) = dlsym(library, name))

static const char *read_once(struct reader *reader, uint64_t offset, uint64_t length)
{
    (void)reader;
    ssize_t bytes = pread(bench.file, bench.memory, length, (off_t)offset);
    if (bytes < 0) {
        return strerror(errno);
    }
    return (uint64_t)bytes == length ? NULL : "pread brought fewer bytes than the file has";
}

static const char *plain_read(struct reader *reader, uint64_t offset, uint64_t length)
{
    (void)reader;
    ssize_t bytes = pread(bench.file, bench.pinned, length, (off_t)offset);
    if (bytes < 0) {
        return strerror(errno);
    }
    if (bench.cuda_upload(bench.address, bench.pinned, (size_t)bytes) != 0) {
        return "cuMemcpyHtoD failed";
    }
    return (uint64_t)bytes == length ? NULL : "pread brought fewer bytes than the file has";
}

static const char *host_allocate(struct reader *reader, uint64_t length)
{
    (void)reader;
    bench.memory = malloc(length);
    if (bench.memory == NULL) {
        return "out of host memory";
    }
    /* Touched, so that no page fault is measured. */
    memset(bench.memory, 1, length);
    return NULL;
}

static const char *host_copy(struct reader *reader, void *to, uint64_t start, uint64_t length)
{
    (void)reader;
    memcpy(to, (char *)bench.memory + start, length);
    return NULL;
}

static void host_release(struct reader *reader)
{
    (void)reader;
    free(bench.memory);
    bench.memory = NULL;
}

static const char *cuda_allocate(struct reader *reader, uint64_t length)
{
    (void)reader;
    if (bench.cuda_allocate(&bench.address, length) != 0) {
        return "cuMemAlloc failed";
    }
    bench.memory = (void *)(uintptr_t)bench.address;
    return NULL;
}

static const char *cuda_copy(struct reader *reader, void *to, uint64_t start, uint64_t length)
{
    (void)reader;
    return bench.cuda_copy(to, bench.address + start, length) == 0 ? NULL : "cuMemcpyDtoH failed";
}

static void cuda_release(struct reader *reader)
{
    (void)reader;
    if (bench.memory != NULL) {
        bench.cuda_free(bench.address);
    }
    bench.memory = NULL;
}

static const char *plain_allocate(struct reader *reader, uint64_t length)
{
    if (bench.cuda_pinned(&bench.pinned, length, 0) != 0) {
        return "cuMemHostAlloc failed";
    }
    return cuda_allocate(reader, length);
}

static void plain_release(struct reader *reader)
{
    cuda_release(reader);
    if (bench.pinned != NULL) {
        bench.cuda_free_pinned(bench.pinned);
    }
    bench.pinned = NULL;
}

static const char *fenced_allocate(struct reader *reader, uint64_t length)
{
    (void)reader;
    bench.memory = bench.fenced_allocate(length);
    return bench.memory == NULL ? "the shim has no memory left" : NULL;
}

static const char *fenced_copy(struct reader *reader, void *to, uint64_t start, uint64_t length)
{
    (void)reader;
    return bench.fenced_read(to, (char *)bench.memory + start, length) == 0 ? NULL : "the shim gave no bytes back";
}

static void fenced_release(struct reader *reader)
{
    (void)reader;
    if (bench.memory != NULL) {
        bench.fenced_free(bench.memory);
    }
    bench.memory = NULL;
}

static const char *find_cuda(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int device;
    void *context;
    if (driver == NULL) {
        return "there is no libcuda.so.1";
    }
    int (*initialize)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*make_current)(void *);
    FIND(initialize, driver, "cuInit");
    FIND(get, driver, "cuDeviceGet");
    FIND(retain, driver, "cuDevicePrimaryCtxRetain");
    FIND(make_current, driver, "cuCtxSetCurrent");
    FIND(bench.cuda_allocate, driver, "cuMemAlloc_v2");
    FIND(bench.cuda_free, driver, "cuMemFree_v2");
    FIND(bench.cuda_copy, driver, "cuMemcpyDtoH_v2");
    FIND(bench.cuda_upload, driver, "cuMemcpyHtoD_v2");
    FIND(bench.cuda_pinned, driver, "cuMemHostAlloc");
    FIND(bench.cuda_free_pinned, driver, "cuMemFreeHost");
    if (!initialize || !get || !retain || !make_current || !bench.cuda_allocate || !bench.cuda_free ||
        !bench.cuda_copy || !bench.cuda_upload || !bench.cuda_pinned || !bench.cuda_free_pinned) {
        return "libcuda.so.1 is too old";
    }
    if (initialize(0) || get(&device, 0) || retain(&context, device) || make_current(context)) {
        return "the driver finds no device";
    }
    return NULL;
}

static const char *find_fenced(void)
{
    FIND(bench.fenced_allocate, RTLD_DEFAULT, "bifolio_fenced_alloc");
    FIND(bench.fenced_free, RTLD_DEFAULT, "bifolio_fenced_free");
    FIND(bench.fenced_read, RTLD_DEFAULT, "bifolio_fenced_read");
    return bench.fenced_allocate && bench.fenced_free && bench.fenced_read
               ? NULL
               : "no preloaded library has fenced memory; set LD_PRELOAD";
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: preload_bench FILE host|cuda|plain|fenced\n");
        return 2;
    }
    struct reader reader = {
        .allocate = host_allocate, .read = read_once, .copy = host_copy, .release = host_release};
    const char *failure = NULL;
    if (strcmp(argv[2], "cuda") == 0) {
        failure = find_cuda();
        reader = (struct reader){
            .allocate = cuda_allocate, .read = read_once, .copy = cuda_copy, .release = cuda_release};
    } else if (strcmp(argv[2], "plain") == 0) {
        failure = find_cuda();
        reader = (struct reader){
            .allocate = plain_allocate, .read = plain_read, .copy = cuda_copy, .release = plain_release};
    } else if (strcmp(argv[2], "fenced") == 0) {
        failure = find_fenced();
        reader = (struct reader){
            .allocate = fenced_allocate, .read = read_once, .copy = fenced_copy, .release = fenced_release};
    }
    struct stat about;
    bench.file = open(argv[1], O_RDONLY);
    if (failure == NULL && (bench.file < 0 || fstat(bench.file, &about) != 0)) {
        failure = strerror(errno);
    }
    if (failure != NULL) {
        printf("error %s: %s\n", argv[1], failure);
        return 1;
    }
    reader.file_bytes = (uint64_t)about.st_size;
    int status = serve(&reader, argv[2]);
    reader.release(&reader);
    close(bench.file);
    return status;
}
