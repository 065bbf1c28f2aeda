/* Counts what it does itself, and compares. With OLD_STATISTICS it is a program that was built for versions 1.15 to
 * 1.18, and with BINDINGS it names every function of its version, as generated bindings do. */
#define _GNU_SOURCE
#include "interface.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, READS = 500, PAGE = 4096 };

#ifdef BINDINGS
const char *const names[] = {
    "cuFileGetBARSizeInKB", "cuFileGetParameterMinMaxValue", "cuFileGetParameterPosixPoolSlabArray", "cuFileGetStatsL1",
    "cuFileGetStatsL2", "cuFileGetStatsL3", "cuFileGetStatsLevel", "cuFileSetParameterPosixPoolSlabArray",
    "cuFileSetStatsLevel", "cuFileStatsReset", "cuFileStatsStart", "cuFileStatsStop",
#ifndef OLD_STATISTICS
    "cuFileReadv", "cuFileWritev",
#endif
};
#endif

static union {
    CUfileStatsLevel1_t one;
    CUfileStatsLevel2_t two;
    CUfileStatsLevel3_t three;
    unsigned char bytes[8192];
} got;

/* Fetches statistics, and looks for what was written behind them. */
static void fetch(int level)
{
    size_t sizes[] = {0, sizeof got.one, sizeof got.two, sizeof got.three};
    memset(&got, 0xc5, sizeof got);
    int error = level == 1   ? cuFileGetStatsL1(&got.one).err
                : level == 2 ? cuFileGetStatsL2(&got.two).err
                             : cuFileGetStatsL3(&got.three).err;
    EXPECT(error == 0);
    for (size_t at = sizes[level]; at < sizeof got; at++) {
        EXPECT(got.bytes[at] == 0xc5);
    }
}

static bool is(CUfileOpCounter_t counter, uint64_t ok, uint64_t err)
{
    return counter.ok == ok && counter.err == err;
}

static CUfileHandle_t file;
static _Alignas(PAGE) unsigned char memory[16 * PAGE];

static void *read_often(void *argument)
{
    unsigned char own[100];
    for (int i = 0; i < READS; i++) {
        EXPECT(cuFileRead(file, own, sizeof own, i, 0) == sizeof own);
    }
    return argument;
}

static void levels(void)
{
    int level = -1;
    EXPECT(cuFileGetStatsLevel(&level).err == 0 && level == 0);
    EXPECT(cuFileSetStatsLevel(-1).err == 5022 && cuFileSetStatsLevel(4).err == 5022);
    EXPECT(cuFileStatsStart().err == 5030 && cuFileStatsStop().err == 0);
    EXPECT(cuFileGetStatsL1(&got.one).err == 5022);
    EXPECT(cuFileRead(file, memory, PAGE, 0, 0) == PAGE);
    EXPECT(cuFileSetStatsLevel(1).err == 0 && cuFileGetStatsLevel(&level).err == 0 && level == 1);
    EXPECT(cuFileGetStatsL2(&got.two).err == 5022 && cuFileGetStatsL3(&got.three).err == 5022);
    fetch(1);
    EXPECT(is(got.one.read_ops, 0, 0));
    /* A level begins counting; sizes are counted from level 2 on. */
    EXPECT(cuFileRead(file, memory, PAGE, 0, 0) == PAGE);
    EXPECT(cuFileSetStatsLevel(2).err == 0);
    fetch(2);
    EXPECT(is(got.two.basic.read_ops, 1, 0) && got.two.read_size_kb_hist[1] == 0);
    EXPECT(cuFileStatsStart().err == 0);
    fetch(2);
    EXPECT(is(got.two.basic.read_ops, 0, 0));
}

static void reads_and_writes(off_t end)
{
    for (int i = 0; i < 3; i++) {
        EXPECT(cuFileRead(file, memory, PAGE, i * 77, 0) == PAGE);
    }
    EXPECT(cuFileRead(file, memory, 100, end - 10, 0) == 10 && cuFileRead(file, memory, 100, end, 0) == 0);
    EXPECT(cuFileRead(file, memory, 100, -1, 0) == -5022 && cuFileRead(NULL, memory, 100, 0, 0) == -1);
    EXPECT(cuFileWrite(file, memory, 1000, 0, 0) == 1000 && cuFileWrite(file, memory, sizeof memory, 0, 0) > 0);
    EXPECT(cuFileWrite(file, NULL, 1, 0, 0) == -5022);
    fetch(2);
    CUfileStatsLevel1_t *basic = &got.two.basic;
    EXPECT(is(basic->read_ops, 5, 2) && basic->read_bytes == 3 * PAGE + 10);
    EXPECT(is(basic->write_ops, 2, 1) && basic->write_bytes == 1000 + sizeof memory);
    EXPECT(basic->read_bw_bytes_per_sec > 0 && basic->write_bw_bytes_per_sec > 0);
    EXPECT(basic->write_lat_sum_us >= 2 * basic->write_lat_avg_us);
    EXPECT(basic->write_lat_sum_us > 0 && basic->read_lat_avg_us <= basic->read_lat_sum_us);
    EXPECT(got.two.read_size_kb_hist[0] == 2 && got.two.read_size_kb_hist[1] == 3);
    EXPECT(got.two.write_size_kb_hist[0] == 1 && got.two.write_size_kb_hist[5] == 1);

    /* In the order of a stream, a request is one as any other. */
    size_t size = 2 * PAGE;
    off_t offset = 0, place = 0, negative = -1;
    ssize_t done = 0, failed = 0;
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, &place, &done, NULL).err == 0);
    EXPECT(cuFileReadAsync(file, memory, &size, &negative, &place, &failed, NULL).err == 0);
    EXPECT(cuFileReadAsync(file, NULL, &size, &offset, &place, &failed, NULL).err == 5022);
    EXPECT(cuFileStreamDeregister(NULL).err == 0 && done == 2 * PAGE && failed == -5022);
    fetch(2);
    EXPECT(is(basic->read_ops, 6, 4) && basic->read_bytes == 5 * PAGE + 10 && got.two.read_size_kb_hist[2] == 1);

    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, read_often, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    fetch(1);
    EXPECT(is(got.one.read_ops, 6 + THREADS * READS, 4));
    EXPECT(got.one.read_bytes == 5 * PAGE + 10 + THREADS * READS * 100);
#ifndef OLD_STATISTICS
    CUfileIOVec_t places[2] = {{memory, 1000}, {memory + PAGE, 500}};
    EXPECT(cuFileReadv(file, places, 2, 0, 0) == 1500 && cuFileWritev(file, places, 2, 0, 0) == 1500);
    EXPECT(cuFileReadv(file, places, 2, 0, 7) == -5022);
    fetch(1);
    EXPECT(is(got.one.readv_ops, 1, 1) && got.one.readv_bytes == 1500 && is(got.one.writev_ops, 1, 0));
    EXPECT(got.one.writev_bytes == 1500 && is(got.one.read_ops, 6 + THREADS * READS, 4));
#endif
}

static void registrations(int fd)
{
    CUfileHandle_t other;
    CUfileDescr_t description = of_descriptor(dup(fd)), again = of_descriptor(fd);
    EXPECT(cuFileHandleRegister(&other, &description).err == 0 && cuFileHandleRegister(&file, &again).err == 5028);
    cuFileHandleDeregister(other);
    cuFileHandleDeregister(other);
    cuFileHandleDeregister(NULL);
    EXPECT(cuFileBufRegister(memory, PAGE, 0).err == 0 && cuFileBufRegister(memory, PAGE, 0).err == 5023);
    EXPECT(cuFileBufRegister(NULL, PAGE, 0).err == 5022 && cuFileBufDeregister(memory).err == 0);
    EXPECT(cuFileBufDeregister(memory).err == 5022);
    fetch(1);
    EXPECT(is(got.one.hdl_register_ops, 1, 1) && is(got.one.hdl_deregister_ops, 1, 2));
    EXPECT(is(got.one.buf_register_ops, 1, 2) && is(got.one.buf_deregister_ops, 1, 1));
}

static void batches(void)
{
    CUfileBatchHandle_t batch;
    CUfileIOParams_t requests[4];
    CUfileIOEvents_t events[4];
    for (int i = 0; i < 4; i++) {
        requests[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file, .opcode = i == 3 ? CUFILE_WRITE : CUFILE_READ};
        requests[i].u.batch.devPtr_base = memory;
        requests[i].u.batch.devPtr_offset = requests[i].u.batch.file_offset = i * 2 * PAGE;
        requests[i].u.batch.size = 2 * PAGE;
    }
    EXPECT(cuFileBatchIOSetUp(&batch, 0).err == 5022 && cuFileBatchIOSetUp(&batch, 4).err == 0);
    for (int round = 0; round < 2; round++) {
        unsigned count = 4;
        EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0);
        EXPECT(cuFileBatchIOGetStatus(batch, 4, &count, events, NULL).err == 0 && count == 4);
    }
    fetch(1);
    EXPECT(is(got.one.batch_setup_ops, 1, 1) && is(got.one.batch_submit_ops, 2, 0));
    EXPECT(is(got.one.batch_complete_ops, 2, 0) && is(got.one.batch_total_submit_ops, 8, 0));
    EXPECT(is(got.one.batch_enqueued_ops, 8, 0) && is(got.one.batch_processed_ops, 8, 0));
    EXPECT(got.one.batch_read_bytes == 12 * PAGE && got.one.batch_write_bytes == 4 * PAGE);
    EXPECT(got.one.last_batch_read_bytes == 6 * PAGE && got.one.last_batch_write_bytes == 2 * PAGE);
    EXPECT(got.one.batch_completion_lat_sum_us >= got.one.batch_completion_lat_avg_us);
    EXPECT(is(got.one.read_ops, 0, 0) && is(got.one.write_ops, 0, 0));
    /* One of them fails, and then all are cancelled. */
    unsigned count = 4;
    requests[1].u.batch.devPtr_base = (void *)0x1000;
    EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0 && cuFileBatchIOSubmit(batch, 4, requests, 0).err == 5037);
    EXPECT(cuFileBatchIOGetStatus(batch, 4, &count, events, NULL).err == 0 && count == 4);
    fetch(1);
    EXPECT(is(got.one.batch_processed_ops, 11, 1) && is(got.one.batch_complete_ops, 3, 0));
    EXPECT(is(got.one.batch_submit_ops, 3, 1) && got.one.last_batch_read_bytes == 4 * PAGE);
    EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0 && cuFileBatchIOCancel(batch).err == 0);
    cuFileBatchIODestroy(batch);
    cuFileBatchIODestroy(batch);
    fetch(1);
    /* It may have been complete just before. */
    EXPECT(got.one.batch_complete_ops.ok - 3 <= 1 && is(got.one.batch_cancel_ops, 1, 0));
    EXPECT(is(got.one.batch_destroy_ops, 1, 1) && is(got.one.batch_enqueued_ops, 16, 0));
    EXPECT(got.one.batch_processed_ops.ok + got.one.batch_processed_ops.err == 16);
}

static void gpus(void)
{
    fetch(3);
    EXPECT(got.three.num_gpus <= 16 && got.three.detailed.basic.read_ops.ok == 0);
    /* Nothing was done on any of them. */
    CUfilePerGpuStats_t none = {0};
    for (unsigned i = 0; i < 16; i++) {
        CUfilePerGpuStats_t *gpu = &got.three.per_gpu_stats[i];
        EXPECT(i < got.three.num_gpus || memcmp(gpu, &none, sizeof none) == 0);
        EXPECT(gpu->n_total_reads == 0 && gpu->n_total_writes == 0 && gpu->n_mmap == 0);
    }
}

static void stops(void)
{
    EXPECT(cuFileStatsReset().err == 0 && cuFileRead(file, memory, PAGE, 0, 0) == PAGE);
    EXPECT(cuFileStatsStop().err == 0 && cuFileRead(file, memory, PAGE, 0, 0) == PAGE);
    fetch(1);
    EXPECT(is(got.one.read_ops, 1, 0) && got.one.read_bytes == PAGE);
    EXPECT(cuFileStatsStart().err == 0 && cuFileRead(file, memory, 10, 0, 0) == 10);
    fetch(1);
    EXPECT(is(got.one.read_ops, 1, 0) && got.one.read_bytes == 10);
    EXPECT(cuFileSetStatsLevel(0).err == 0 && cuFileGetStatsL1(&got.one).err == 5022);
    EXPECT(cuFileRead(file, memory, 10, 0, 0) == 10 && cuFileSetStatsLevel(1).err == 0);
    fetch(1);
    EXPECT(is(got.one.read_ops, 1, 0));
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    int version = 0;
    EXPECT(cuFileGetVersion(&version).err == 0 && version == atoi(argv[2]));
#ifdef BINDINGS
    /* So that they stay. */
    EXPECT(((const char *const volatile *)names)[0][0] == 'c');
#endif
    int fd = open(argv[1], O_RDWR);
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(fd >= 0 && cuFileDriverOpen().err == 0 && cuFileHandleRegister(&file, &description).err == 0);
    levels();
    reads_and_writes(lseek(fd, 0, SEEK_END));
    EXPECT(cuFileStatsReset().err == 0);
    registrations(fd);
    EXPECT(cuFileStatsReset().err == 0);
    batches();
    EXPECT(cuFileSetStatsLevel(3).err == 0 && cuFileStatsStart().err == 0);
    gpus();
    stops();
    /* The numbers are those of a session. */
    EXPECT(cuFileDriverClose_v2().err == 0 && cuFileGetStatsL1(&got.one).err == 5001 && cuFileDriverOpen().err == 0);
    fetch(1);
    EXPECT(is(got.one.read_ops, 0, 0) && cuFileDriverClose_v2().err == 0);
    printf("all counted\n");
    return 0;
}
