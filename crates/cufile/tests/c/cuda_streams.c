/* Memory and streams of a GPU, by the CUDA driver; without one it says so and ends. */
#define _GNU_SOURCE
#include "interface.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 40000003, STREAMS = 24, ROUNDS = 20, PART = 5000001 };

static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*create_context)(void **, unsigned, int);
    int (*set_current)(void *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*to_host)(void *, uint64_t, size_t);
    int (*to_host_async)(void *, uint64_t, size_t, CUstream);
    int (*fill)(uint64_t, unsigned char, size_t, CUstream);
    int (*create)(CUstream *, unsigned);
    int (*destroy)(CUstream);
    int (*synchronize)(CUstream);
    int (*call)(CUstream, void (*)(void *), void *);
    int (*begin_capture)(CUstream, int);
    int (*end_capture)(CUstream, void **);
    int (*destroy_graph)(void *);
} cuda;

static bool load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        return false;
    }
    struct {
        void *place;
        const char *name;
    } symbols[] = {
        {&cuda.init, "cuInit"}, {&cuda.retain, "cuDevicePrimaryCtxRetain"}, {&cuda.create_context, "cuCtxCreate_v2"},
        {&cuda.set_current, "cuCtxSetCurrent"}, {&cuda.alloc, "cuMemAlloc_v2"}, {&cuda.free, "cuMemFree_v2"},
        {&cuda.to_host, "cuMemcpyDtoH_v2"}, {&cuda.to_host_async, "cuMemcpyDtoHAsync_v2"},
        {&cuda.fill, "cuMemsetD8Async"}, {&cuda.create, "cuStreamCreate"}, {&cuda.destroy, "cuStreamDestroy_v2"},
        {&cuda.synchronize, "cuStreamSynchronize"}, {&cuda.call, "cuLaunchHostFunc"},
        {&cuda.begin_capture, "cuStreamBeginCapture_v2"}, {&cuda.end_capture, "cuStreamEndCapture"},
        {&cuda.destroy_graph, "cuGraphDestroy"},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(library, symbols[i].name);
        EXPECT(found != NULL);
        memcpy(symbols[i].place, &found, sizeof found);
    }
    return cuda.init(0) == 0;
}

static unsigned char content[SIZE], got[SIZE];
static CUfileHandle_t file, copy;

static void *on_device(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void by_itself(void)
{
    uint64_t memory;
    EXPECT(cuda.alloc(&memory, SIZE + 100) == 0);
    size_t sizes[] = {1, 4096, 300000, PART, SIZE};
    for (int registered = 0; registered < 2; registered++) {
        if (registered) {
            EXPECT(cuFileBufRegister(on_device(memory), SIZE + 100, 0).err == 0);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            off_t offset = (off_t)(SIZE - sizes[i]) / 2;
            EXPECT(cuFileRead(file, on_device(memory), sizes[i], offset, 13) == (ssize_t)sizes[i]);
            EXPECT(cuda.to_host(got, memory + 13, sizes[i]) == 0 && memcmp(got, content + offset, sizes[i]) == 0);
            EXPECT(cuFileWrite(copy, on_device(memory), sizes[i], 7, 13) == (ssize_t)sizes[i]);
            EXPECT(cuFileRead(copy, got, sizes[i], 7, 0) == (ssize_t)sizes[i]);
            EXPECT(memcmp(got, content + offset, sizes[i]) == 0);
        }
    }
    EXPECT(cuFileRead(file, on_device(memory), SIZE, 0, 101) == -5017);
    EXPECT(cuFileBufDeregister(on_device(memory)).err == 0);
    EXPECT(cuFileBufRegister(on_device(memory), (size_t)1 << 40, 0).err == 5014);
    EXPECT(cuFileRead(file, on_device(memory), (size_t)1 << 40, 0, 0) == -5014);
    EXPECT(cuda.free(memory) == 0);
    EXPECT(cuFileRead(file, on_device(memory), 10, 0, 0) < 0);
}

/* What the statistics say of the GPU, and how much of its memory the bus sees. */
static void counted(void)
{
    static CUfileStatsLevel3_t statistics;
    CUfilePerGpuStats_t *gpu = &statistics.per_gpu_stats[0], none = {0};
    uint64_t memory;
    size_t kib = 0;
    EXPECT(cuFileGetBARSizeInKB(0, &kib).err == 0 && kib >= 1024 && (kib & (kib - 1)) == 0);
    EXPECT(cuda.alloc(&memory, SIZE) == 0 && cuFileSetStatsLevel(3).err == 0 && cuFileStatsStart().err == 0);
    EXPECT(cuFileBufRegister(on_device(memory), 8192, 0).err == 0);
    EXPECT(cuFileRead(file, on_device(memory), 4096, 8192, 4096) == 4096);
    EXPECT(cuFileRead(file, on_device(memory), 1000, 5, 0) == 1000);
    EXPECT(cuFileRead(file, got, 1000, 5, 0) == 1000);
    EXPECT(cuFileWrite(copy, on_device(memory), 4096, 0, 0) == 4096);
    size_t size = 5000;
    off_t offset = 0, place = 0;
    ssize_t done = 0;
    EXPECT(cuFileReadAsync(file, on_device(memory), &size, &offset, &place, &done, NULL).err == 0);
    EXPECT(cuda.synchronize(NULL) == 0 && done == 5000);
    EXPECT(cuFileBufDeregister(on_device(memory)).err == 0);
    EXPECT(cuFileGetStatsL3(&statistics).err == 0 && statistics.num_gpus >= 1);
    EXPECT(memcmp(gpu->uuid, none.uuid, sizeof none.uuid) != 0);
    EXPECT(statistics.detailed.basic.read_ops.ok == 4 && statistics.detailed.basic.read_bytes == 11096);
    EXPECT(gpu->n_total_reads == 3 && gpu->read_bytes == 10096 && gpu->n_unaligned_reads == 2 && gpu->n_reads_err == 0);
    EXPECT(gpu->n_posix_reads + gpu->n_nvfs_reads == 3 && gpu->read_duration_us > 0);
    EXPECT(gpu->n_total_writes == 1 && gpu->writes_bytes == 4096 && gpu->n_unaligned_writes == 0);
    EXPECT(gpu->n_mmap == 1 && gpu->n_mmap_ok == 1 && gpu->n_mmap_free == 1 && gpu->reg_bytes == 8192);
    EXPECT(cuFileSetStatsLevel(0).err == 0 && cuda.free(memory) == 0);
}

static void batch(void)
{
    enum { COUNT = 128, BYTES = 4096 };
    uint64_t memory;
    CUfileBatchHandle_t batch;
    CUfileIOParams_t requests[COUNT];
    CUfileIOEvents_t events[COUNT];
    unsigned count = COUNT;
    EXPECT(cuda.alloc(&memory, COUNT * BYTES) == 0 && cuFileBatchIOSetUp(&batch, COUNT).err == 0);
    for (int i = 0; i < COUNT; i++) {
        requests[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file, .opcode = CUFILE_READ};
        requests[i].u.batch.devPtr_base = on_device(memory);
        requests[i].u.batch.devPtr_offset = i * BYTES;
        requests[i].u.batch.file_offset = i * 30000;
        requests[i].u.batch.size = BYTES;
    }
    EXPECT(cuFileBatchIOSubmit(batch, COUNT, requests, 0).err == 0);
    EXPECT(cuFileBatchIOGetStatus(batch, COUNT, &count, events, NULL).err == 0 && count == COUNT);
    EXPECT(cuda.to_host(got, memory, COUNT * BYTES) == 0);
    for (int i = 0; i < COUNT; i++) {
        EXPECT(events[i].status == CUFILE_COMPLETE && events[i].ret == BYTES);
        EXPECT(memcmp(got + i * BYTES, content + i * 30000, BYTES) == 0);
    }
    cuFileBatchIODestroy(batch);
    cuda.free(memory);
}

struct request {
    size_t size;
    off_t offset, place;
    ssize_t done;
    /* What the callback sets. */
    size_t late_size;
    off_t late_offset, late_place;
};

static void set_late(void *argument)
{
    struct request *request = argument;
    usleep(20000);
    request->size = request->late_size;
    request->offset = request->late_offset;
    request->place = request->late_place;
}

static void late(CUstream stream)
{
    uint64_t memory;
    struct request read = {.size = SIZE, .late_size = PART, .late_offset = 1234567, .late_place = 89};
    struct request write = {.size = SIZE, .late_size = PART - 5, .late_offset = 3, .late_place = 91};
    EXPECT(cuda.alloc(&memory, SIZE) == 0 && cuda.fill(memory, 0xab, SIZE, stream) == 0);
    EXPECT(cuda.call(stream, set_late, &read) == 0);
    EXPECT(cuFileReadAsync(file, on_device(memory), &read.size, &read.offset, &read.place, &read.done, stream).err == 0);
    EXPECT(cuda.call(stream, set_late, &write) == 0);
    EXPECT(cuFileWriteAsync(copy, on_device(memory), &write.size, &write.offset, &write.place, &write.done, stream).err == 0);
    EXPECT(cuda.to_host_async(got, memory, SIZE, stream) == 0);
    EXPECT(cuda.synchronize(stream) == 0 && read.done == PART && write.done == PART - 5);
    EXPECT(memcmp(got + 89, content + 1234567, PART) == 0 && got[88] == 0xab && got[89 + PART] == 0xab);
    EXPECT(cuFileRead(copy, got, PART - 5, 3, 0) == PART - 5 && memcmp(got, content + 1234569, PART - 5) == 0);
    /* Memory of the CPU has its turn on the stream, too. */
    struct request host = {.size = 1000, .late_size = 999, .late_offset = 5, .late_place = 1};
    EXPECT(cuda.call(stream, set_late, &host) == 0);
    EXPECT(cuFileReadAsync(file, got, &host.size, &host.offset, &host.place, &host.done, stream).err == 0);
    EXPECT(cuda.synchronize(stream) == 0 && host.done == 999 && memcmp(got + 1, content + 5, 999) == 0);
    EXPECT(cuFileStreamDeregister(stream).err == 0 && cuda.free(memory) == 0);
}

/* How many bytes of a request the file has: the latest rounds begin before its end, at it, and beyond it. */
static ssize_t there(const struct request *request)
{
    off_t left = SIZE - request->offset;
    return left <= 0 ? 0 : left < (off_t)request->size ? (ssize_t)left : (ssize_t)request->size;
}

/* More streams than the driver has queues, each with closed gates most of the time. */
static void many(void)
{
    static struct request reads[STREAMS][ROUNDS], writes[STREAMS][ROUNDS];
    CUstream streams[STREAMS];
    uint64_t memories[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        EXPECT(cuda.create(&streams[i], i % 2) == 0 && cuda.alloc(&memories[i], PART) == 0);
        EXPECT(i % 3 != 0 || cuFileStreamRegister(streams[i], 15).err == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STREAMS; i++) {
            size_t size = i % 4 == 0 ? PART : (size_t)(1000 + 7 * i);
            struct request *read = &reads[i][round], *write = &writes[i][round];
            *read = (struct request){.size = size, .offset = (i + round) * 1000001};
            *write = (struct request){.size = size, .offset = (off_t)i * PART};
            EXPECT(cuFileReadAsync(file, on_device(memories[i]), &read->size, &read->offset, &read->place, &read->done,
                                   streams[i]).err == 0);
            EXPECT(cuFileWriteAsync(copy, on_device(memories[i]), &write->size, &write->offset, &write->place,
                                    &write->done, streams[i]).err == 0);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        EXPECT(cuda.synchronize(streams[i]) == 0);
        for (int round = 0; round < ROUNDS; round++) {
            struct request *read = &reads[i][round];
            ssize_t expected = there(read);
            if (read->done != expected) {
                fprintf(stderr, "stream %d, round %d: %zd of %zu bytes at %lld, not %zd\n", i, round, read->done,
                        read->size, (long long)read->offset, expected);
            }
            EXPECT(read->done == expected);
            EXPECT(writes[i][round].done == (ssize_t)writes[i][round].size);
        }
        ssize_t size = reads[i][ROUNDS - 1].done;
        EXPECT(cuFileRead(copy, got, (size_t)size, (off_t)i * PART, 0) == size);
        EXPECT(memcmp(got, content + reads[i][ROUNDS - 1].offset, (size_t)size) == 0);
        EXPECT(cuFileStreamDeregister(streams[i]).err == 0 && cuda.destroy(streams[i]) == 0);
        EXPECT(cuda.free(memories[i]) == 0);
    }
}

static void wait_for(void *argument)
{
    while (!atomic_load((atomic_bool *)argument)) {
        usleep(1000);
    }
}

/* A program that submits everything before it lets its stream go on: as much as a stream has gates for. */
static void held_up(void)
{
    enum { COUNT = 24 };
    static struct request reads[COUNT];
    CUstream stream;
    uint64_t memory;
    atomic_bool is_free = false;
    EXPECT(cuda.create(&stream, 1) == 0 && cuda.alloc(&memory, SIZE) == 0);
    for (int attempt = 0; attempt < 2; attempt++) {
        /* The first time memory is allocated, which may wait for the device. */
        if (attempt == 1) {
            EXPECT(cuda.call(stream, wait_for, &is_free) == 0);
        }
        for (int i = 0; i < COUNT; i++) {
            reads[i] = (struct request){.size = 1000, .offset = i * 1000, .place = i * 1000};
            EXPECT(cuFileReadAsync(file, on_device(memory), &reads[i].size, &reads[i].offset, &reads[i].place,
                                   &reads[i].done, stream).err == 0);
        }
        atomic_store(&is_free, attempt == 1);
        EXPECT(cuda.synchronize(stream) == 0);
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT(reads[i].done == 1000);
    }
    EXPECT(cuda.to_host(got, memory, COUNT * 1000) == 0 && memcmp(got, content, COUNT * 1000) == 0);

    /* More than that waits for the stream, which here goes on by itself. */
    struct request longest[4], nothing = {.size = 0};
    EXPECT(cuda.call(stream, set_late, &nothing) == 0);
    for (int i = 0; i < 4; i++) {
        longest[i] = (struct request){.size = SIZE};
        EXPECT(cuFileReadAsync(file, on_device(memory), &longest[i].size, &longest[i].offset, &longest[i].place,
                               &longest[i].done, stream).err == 0);
    }
    /* Memory may be freed as soon as the stream is given up. */
    EXPECT(cuFileStreamDeregister(stream).err == 0);
    for (int i = 0; i < 4; i++) {
        EXPECT(longest[i].done == SIZE);
    }
    EXPECT(cuda.to_host(got, memory, SIZE) == 0 && memcmp(got, content, SIZE) == 0);
    EXPECT(cuda.free(memory) == 0 && cuda.destroy(stream) == 0);
}

static void captured(void)
{
    CUstream stream;
    void *graph = NULL;
    uint64_t memory;
    struct request read = {.size = 1000};
    EXPECT(cuda.create(&stream, 1) == 0 && cuda.alloc(&memory, 1000) == 0);
    EXPECT(cuda.begin_capture(stream, 2) == 0);
    EXPECT(cuFileReadAsync(file, on_device(memory), &read.size, &read.offset, &read.place, &read.done, stream).err == 5038);
    EXPECT(cuda.end_capture(stream, &graph) == 0 && graph != NULL && cuda.destroy_graph(graph) == 0);
    EXPECT(cuFileReadAsync(file, on_device(memory), &read.size, &read.offset, &read.place, &read.done, stream).err == 0);
    EXPECT(cuda.synchronize(stream) == 0 && read.done == 1000);
    EXPECT(cuFileStreamDeregister(stream).err == 0 && cuda.free(memory) == 0 && cuda.destroy(stream) == 0);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    if (!load()) {
        printf("skipped: there is no CUDA driver with a device here\n");
        return 0;
    }
    alarm(300);
    void *context;
    EXPECT(cuda.retain(&context, 0) == 0 && cuda.set_current(context) == 0);
    int in = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600), out = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint64_t state = 88172645463325252u;
    for (int i = 0; i < SIZE; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        content[i] = (unsigned char)state;
    }
    EXPECT(in >= 0 && out >= 0 && pwrite(in, content, SIZE, 0) == SIZE);
    CUfileDescr_t descriptions[2] = {of_descriptor(in), of_descriptor(out)};
    EXPECT(cuFileHandleRegister(&file, &descriptions[0]).err == 0);
    EXPECT(cuFileHandleRegister(&copy, &descriptions[1]).err == 0);
    by_itself();
    counted();
    batch();
    CUstream stream;
    EXPECT(cuda.create(&stream, 1) == 0);
    late(stream);
    late((CUstream)1); /* the legacy default stream */
    late((CUstream)2); /* the thread's */
    late(NULL);
    many();
    if (getenv("CUDA_LAUNCH_BLOCKING") == NULL) {
        held_up();
    } else {
        fprintf(stderr, "skipped: streams that are held up, as each launch is waited for\n");
    }
    captured();
    /* A context of the program's own. */
    EXPECT(cuda.destroy(stream) == 0);
    void *own;
    if (cuda.create_context(&own, 0, 0) == 0) {
        by_itself();
        EXPECT(cuda.create(&stream, 1) == 0);
        late(stream);
    }
    cuFileHandleDeregister(file);
    cuFileHandleDeregister(copy);
    EXPECT(cuFileDriverClose_v2().err == 0);
    printf("all there\n");
    return 0;
}
