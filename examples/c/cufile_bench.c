/* Reads a file in a loop with cuFileRead, in cache states that it sets up itself, and prints a table:
 *
 *   cc -O2 -pthread cufile_bench.c -ldl -o cufile_bench && ./cufile_bench FILE [OPTION VALUE]...
 *
 * It is linked with nothing: the library is the libcufile.so.0 that the loader finds (LD_LIBRARY_PATH), or
 * the one named by --library; the CUDA driver is loaded where there is one. So the same program measures
 * NVIDIA's library and Bifolio's.
 *
 *   --library PATH            --sizes 64K,1M,16M        --threads 1,8         --states cold,half,warm,again
 *   --device cuda|host        --direct 0|1 (O_DIRECT)   --repeat 3            --header 0|1
 *   --length 1G (only the file's beginning)
 *
 * A measurement reads the file once, each thread into memory of its own, which is registered. The best of the
 * repetitions counts. "cached" is what of the file the kernel says is in the page cache before it. The file is
 * registered anew for each, as a library may keep pages in the cache while it has a file; where a state that was
 * set is not there nevertheless, the program ends with an error. "again" is a warm file that has been read three
 * times through the same handle, as by a program that reads its data again and again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LIST_MAX = 16, THREADS_MAX = 64, STRIPE = 32 << 20, PASSES_BEFORE = 3 };

static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("cufile_bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* cuFile, as far as it is used here. */
typedef struct {
    int err, cu_err;
} status;
struct description {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
};
static struct {
    status (*open)(void);
    status (*close)(void);
    status (*register_file)(void **, struct description *);
    void (*deregister_file)(void *);
    status (*register_memory)(const void *, size_t, int);
    status (*deregister_memory)(const void *);
    ssize_t (*read)(void *, void *, size_t, off_t, off_t);
    status (*version)(int *);
    const char *(*last_error)(void);
} cufile;

/* The CUDA driver. */
static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_current)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*to_host)(void *, uint64_t, size_t);
    int (*name)(char *, int, int);
    void *context;
} cuda;

static void *symbol(void *library, const char *name, bool needed)
{
    void *found = dlsym(library, name);
    if (found == NULL && needed) {
        die("%s is missing: %s", name, dlerror());
    }
    return found;
}

#define LOAD(place, library, name) (*(void **)(&(place)) = symbol(library, name, true))

static void load_cufile(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        die("%s", dlerror());
    }
    LOAD(cufile.open, library, "cuFileDriverOpen");
    LOAD(cufile.close, library, "cuFileDriverClose_v2");
    LOAD(cufile.register_file, library, "cuFileHandleRegister");
    LOAD(cufile.deregister_file, library, "cuFileHandleDeregister");
    LOAD(cufile.register_memory, library, "cuFileBufRegister");
    LOAD(cufile.deregister_memory, library, "cuFileBufDeregister");
    LOAD(cufile.read, library, "cuFileRead");
    LOAD(cufile.version, library, "cuFileGetVersion");
    *(void **)&cufile.last_error = symbol(library, "bifolio_cufile_last_error", false);
}

/* Whether there is a driver with a device. */
static bool load_cuda(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        return false;
    }
    LOAD(cuda.init, library, "cuInit");
    LOAD(cuda.retain, library, "cuDevicePrimaryCtxRetain");
    LOAD(cuda.set_current, library, "cuCtxSetCurrent");
    LOAD(cuda.alloc, library, "cuMemAlloc_v2");
    LOAD(cuda.free, library, "cuMemFree_v2");
    LOAD(cuda.to_host, library, "cuMemcpyDtoH_v2");
    LOAD(cuda.name, library, "cuDeviceGetName");
    return cuda.init(0) == 0 && cuda.retain(&cuda.context, 0) == 0 && cuda.set_current(cuda.context) == 0;
}

static bool on_device;

static void *allocate(size_t size)
{
    if (!on_device) {
        void *memory = NULL;
        return posix_memalign(&memory, 4096, size) == 0 ? memory : NULL;
    }
    uint64_t memory = 0;
    return cuda.alloc(&memory, size) == 0 ? (void *)(uintptr_t)memory : NULL;
}

static void release(void *memory)
{
    if (on_device) {
        cuda.free((uint64_t)(uintptr_t)memory);
    } else {
        free(memory);
    }
}

/* What is measured. */
static const char *path;
static off_t file_size;
static bool direct = true;
static int descriptor = -1;
static void *handle;
static size_t request_size;
static void *memories[THREADS_MAX];
static atomic_llong next_offset;

static void check(status got, const char *what)
{
    if (got.err != 0) {
        die("%s failed: cuFile error %d, CUDA error %d (%s)", what, got.err, got.cu_err,
            cufile.last_error != NULL ? cufile.last_error() : "see cufile.log");
    }
}

static void open_file(void)
{
    /* Some file systems have no O_DIRECT; then both libraries read through the page cache. */
    descriptor = direct ? open(path, O_RDONLY | O_DIRECT) : -1;
    descriptor = descriptor < 0 ? open(path, O_RDONLY) : descriptor;
    if (descriptor < 0) {
        die("%s: %s", path, strerror(errno));
    }
    struct description description = {.type = 1, .handle.fd = descriptor};
    check(cufile.register_file(&handle, &description), "cuFileHandleRegister");
}

static void close_file(void)
{
    cufile.deregister_file(handle);
    close(descriptor);
}

static void *read_requests(void *memory)
{
    if (on_device && cuda.set_current(cuda.context) != 0) {
        die("the CUDA context cannot be entered");
    }
    for (;;) {
        off_t offset = atomic_fetch_add(&next_offset, (long long)request_size);
        if (offset >= file_size) {
            return NULL;
        }
        size_t left = (size_t)(file_size - offset), size = left < request_size ? left : request_size;
        ssize_t got = cufile.read(handle, memory, size, offset, 0);
        if (got != (ssize_t)size) {
            die("reading %zu bytes at %lld gave %zd (errno %d)", size, (long long)offset, got, errno);
        }
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static bool is_warm(const char *state)
{
    return strcmp(state, "warm") == 0 || strcmp(state, "again") == 0;
}

/* Puts a part of the file into the page cache, and the rest out of it. */
static void set_state(const char *state)
{
    int fd = open(path, O_RDONLY);
    char *buffer = malloc(1 << 20);
    if (fd < 0 || buffer == NULL || fsync(fd) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    bool warm = is_warm(state);
    if (!warm) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    if (strcmp(state, "cold") != 0) {
        /* Without this the kernel reads ahead, into stripes that shall not be cached. */
        posix_fadvise(fd, 0, 0, warm ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
        for (off_t at = 0; at < file_size; at += 1 << 20) {
            if (warm || at / STRIPE % 2 == 0) {
                if (pread(fd, buffer, 1 << 20, at) < 0) {
                    die("%s: %s", path, strerror(errno));
                }
            }
        }
    }
    free(buffer);
    close(fd);
}

/* How many percent of what is read are in the page cache. */
static double cached_percent(void)
{
    int fd = open(path, O_RDONLY);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, (size_t)file_size, PROT_READ, MAP_SHARED, fd, 0);
    size_t pages = ((size_t)file_size + 4095) / 4096, cached = 0;
    unsigned char *resident = malloc(pages);
    if (map == MAP_FAILED || resident == NULL || mincore(map, (size_t)file_size, resident) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    for (size_t i = 0; i < pages; i++) {
        cached += resident[i] & 1;
    }
    munmap(map, (size_t)file_size);
    free(resident);
    close(fd);
    return 100.0 * (double)cached / (double)pages;
}

/* Puts the file into a state; how many percent of it are cached then. */
static double prepare(const char *state)
{
    /* A short file is one stripe, which half of it is. */
    double least = 0, most = 100;
    if (strcmp(state, "cold") == 0) {
        most = 2;
    } else if (is_warm(state)) {
        least = 98;
    } else if (file_size >= 8 * (off_t)STRIPE) {
        least = 40, most = 70;
    }
    double percent = 0;
    /* What a library does in the background may keep pages for a moment. */
    for (int attempt = 0; attempt < 10; attempt++) {
        set_state(state);
        percent = cached_percent();
        if (least <= percent && percent <= most) {
            return percent;
        }
        usleep(200000);
    }
    die("%s: %.0f %% of it are cached, which is not %s: a library or another program keeps its pages in the cache, the "
        "memory does not suffice for them, or its file system has none but these (tmpfs)", path, percent, state);
    return percent;
}

/* Reads the file once, by so many threads. */
static void read_all(int threads)
{
    pthread_t running[THREADS_MAX];
    atomic_store(&next_offset, 0);
    for (int thread = 0; thread < threads; thread++) {
        if (pthread_create(&running[thread], NULL, read_requests, memories[thread]) != 0) {
            die("no thread: %s", strerror(errno));
        }
    }
    for (int thread = 0; thread < threads; thread++) {
        pthread_join(running[thread], NULL);
    }
}

static void measure(const char *state, int threads, int repeat)
{
    bool again = strcmp(state, "again") == 0;
    double best = 0, cpu = 0, cached = 0;
    for (int i = 0; i < repeat; i++) {
        bool anew = !again || i == 0;
        if (anew) {
            close_file();
        }
        double percent = prepare(state);
        if (anew) {
            open_file();
        }
        for (int pass = 0; again && anew && pass < PASSES_BEFORE; pass++) {
            read_all(threads);
            /* For what a library does in the background. */
            usleep(100000);
        }
        double started = seconds(), cpu_started = cpu_seconds();
        read_all(threads);
        double rate = (double)file_size / (seconds() - started) / 1e9;
        if (rate > best) {
            best = rate;
            cpu = (cpu_seconds() - cpu_started) / ((double)file_size / 1e9);
            cached = percent;
        }
    }
    printf("%s\t%zu\t%d\t%.3f\t%.3f\t%.0f\n", state, request_size, threads, best, cpu, cached);
    fflush(stdout);
}

/* What was read is what is in the file. */
static void verify(void)
{
    size_t size = (size_t)file_size < request_size ? (size_t)file_size : request_size;
    char *got = malloc(size), *expected = malloc(size);
    off_t offset = (file_size - (off_t)size) / 4096 * 4096;
    int fd = open(path, O_RDONLY);
    if (got == NULL || expected == NULL || fd < 0 || pread(fd, expected, size, offset) != (ssize_t)size) {
        die("%s: %s", path, strerror(errno));
    }
    if (cufile.read(handle, memories[0], size, offset, 0) != (ssize_t)size) {
        die("reading %zu bytes at %lld for comparison failed (%s)", size, (long long)offset,
            cufile.last_error != NULL ? cufile.last_error() : "see cufile.log");
    }
    if (on_device) {
        if (cuda.to_host(got, (uint64_t)(uintptr_t)memories[0], size) != 0) {
            die("copying from the device failed");
        }
    } else {
        memcpy(got, memories[0], size);
    }
    if (memcmp(got, expected, size) != 0) {
        die("%zu bytes at %lld are not those of the file", size, (long long)offset);
    }
    close(fd);
    free(got);
    free(expected);
}

static size_t size_of(const char *text)
{
    char *end;
    size_t size = strtoull(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (size == 0 || (shift == 0 && *end != '\0') || (shift != 0 && end[1] != '\0')) {
        die("%s is not a size: use 4096, 64K, 1M or 1G", text);
    }
    return size << shift;
}

static int split(char *text, char **parts)
{
    int count = 0;
    for (char *part = strtok(text, ","); part != NULL && count < LIST_MAX; part = strtok(NULL, ",")) {
        parts[count++] = part;
    }
    return count;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc % 2 != 0) {
        die("usage: cufile_bench FILE [OPTION VALUE]...");
    }
    path = argv[1];
    char sizes[] = "64K,1M,16M,128M", threads[] = "1,8", states[] = "cold,half,warm,again";
    char *size_list = sizes, *thread_list = threads, *state_list = states, *library = "libcufile.so.0";
    const char *device = "auto";
    int repeat = 3, header = 1;
    size_t length = 0;
    for (int i = 2; i < argc; i += 2) {
        const char *option = argv[i];
        char *value = argv[i + 1];
        if (strcmp(option, "--library") == 0) {
            library = value;
        } else if (strcmp(option, "--sizes") == 0) {
            size_list = value;
        } else if (strcmp(option, "--threads") == 0) {
            thread_list = value;
        } else if (strcmp(option, "--states") == 0) {
            state_list = value;
        } else if (strcmp(option, "--device") == 0) {
            device = value;
        } else if (strcmp(option, "--direct") == 0) {
            direct = atoi(value) != 0;
        } else if (strcmp(option, "--length") == 0) {
            length = size_of(value);
        } else if (strcmp(option, "--repeat") == 0) {
            repeat = atoi(value);
        } else if (strcmp(option, "--header") == 0) {
            header = atoi(value);
        } else {
            die("there is no option %s", option);
        }
    }
    load_cufile(library);
    on_device = strcmp(device, "host") != 0 && load_cuda();
    if (strcmp(device, "cuda") == 0 && !on_device) {
        die("there is no CUDA driver with a device here");
    }
    struct stat about = {.st_size = 0};
    if (stat(path, &about) != 0) {
        die("%s: %s", path, strerror(errno));
    }
    if (about.st_size == 0) {
        die("%s: the file is empty", path);
    }
    file_size = length > 0 && (off_t)length < about.st_size ? (off_t)length : about.st_size;
    check(cufile.open(), "cuFileDriverOpen");
    open_file();

    int version = 0;
    char name[128] = "host memory";
    check(cufile.version(&version), "cuFileGetVersion");
    if (on_device) {
        cuda.name(name, sizeof name, 0);
    }
    if (header) {
        Dl_info where;
        void *function = *(void **)&cufile.read;
        printf("# %s cuFile %d, %s\n", cufile.last_error != NULL ? "Bifolio's" : "NVIDIA's", version,
               dladdr(function, &where) != 0 ? where.dli_fname : library);
        printf("# %s, %s, %.2f GB%s\n", name, path, (double)file_size / 1e9, direct ? ", O_DIRECT" : "");
        printf("state\tbytes\tthreads\tGB/s\tCPU s/GB\tcached %%\n");
    }
    char *parts[3][LIST_MAX];
    int counts[3] = {split(size_list, parts[0]), split(thread_list, parts[1]), split(state_list, parts[2])};
    for (int i = 0; i < counts[0]; i++) {
        request_size = size_of(parts[0][i]);
        for (int j = 0; j < counts[1]; j++) {
            int count = atoi(parts[1][j]);
            if (count < 1 || count > THREADS_MAX) {
                die("%s is not a number of threads from 1 to %d", parts[1][j], THREADS_MAX);
            }
            for (int thread = 0; thread < count; thread++) {
                memories[thread] = allocate(request_size);
                if (memories[thread] == NULL) {
                    die("no %zu bytes of memory", request_size);
                }
                check(cufile.register_memory(memories[thread], request_size, 0), "cuFileBufRegister");
            }
            verify();
            for (int k = 0; k < counts[2]; k++) {
                measure(parts[2][k], count, repeat);
            }
            for (int thread = 0; thread < count; thread++) {
                check(cufile.deregister_memory(memories[thread]), "cuFileBufDeregister");
                release(memories[thread]);
            }
        }
    }
    close_file();
    check(cufile.close(), "cuFileDriverClose");
    return 0;
}
