/* Calls everything wrongly. */
#define _GNU_SOURCE
#include "interface.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static CUfileHandle_t registered(int fd)
{
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(fd >= 0 && cuFileHandleRegister(&file, &description).err == 0);
    return file;
}

static int refusal(int type, int fd)
{
    CUfileHandle_t file;
    CUfileDescr_t description = {.type = type, .handle.fd = fd};
    return cuFileHandleRegister(&file, &description).err;
}

static void before_it_is_open(void)
{
    CUfileDrvProps_t properties;
    size_t size, low, high, sizes[2] = {8, 4}, counts[2] = {1, 2};
    bool choice;
    char text[8];
    int number;
    EXPECT(cuFileUseCount() == 0 && cuFileDriverClose_v2().err == 5001 && cuFileDriverClose().err == 5001);
    EXPECT(cuFileGetVersion(NULL).err == 5022 && cuFileGetVersion(&number).err == 0 && number == 1200);
    EXPECT(cuFileDriverGetProperties(NULL).err == 5022 && cuFileDriverGetProperties(&properties).err == 0);
    EXPECT(properties.nvfs.major_version == 0 && properties.nvfs.dcontrolflags == 2 && properties.fflags == 14);
    EXPECT(properties.nvfs.max_direct_io_size == 16384 && properties.max_batch_io_size == 128);
    EXPECT(properties.max_device_cache_size == 131072 && properties.max_batch_io_timeout_msecs == 5);
    EXPECT(cuFileDriverSetPollMode(true, 3).err == 5022 && cuFileDriverSetPollMode(false, 0).err == 5022);
    EXPECT(cuFileDriverSetPollMode(true, 8).err == 0);
    EXPECT(cuFileDriverSetMaxDirectIOSize(0).err == 5022 && cuFileDriverSetMaxDirectIOSize(100000).err == 5022);
    EXPECT(cuFileDriverSetMaxDirectIOSize(1024).err == 0);
    EXPECT(cuFileDriverSetMaxCacheSize(3).err == 5022 && cuFileDriverSetMaxCacheSize(1 << 16).err == 0);
    EXPECT(cuFileDriverSetMaxPinnedMemSize(0).err == 5022 && cuFileDriverSetMaxPinnedMemSize(1 << 16).err == 0);
    EXPECT(cuFileDriverGetProperties(&properties).err == 0 && properties.nvfs.dcontrolflags == 3);
    EXPECT(properties.nvfs.poll_thresh_size == 8 && properties.nvfs.max_direct_io_size == 1024);

    EXPECT(cuFileGetParameterSizeT(-1, &size).err == 5022 && cuFileGetParameterSizeT(12, &size).err == 5022);
    EXPECT(cuFileGetParameterSizeT(1, NULL).err == 5022 && cuFileGetParameterSizeT(1, &size).err == 0 && size == 128);
    EXPECT(cuFileSetParameterSizeT(12, 1).err == 5022 && cuFileSetParameterSizeT(1, 64).err == 0);
    EXPECT(cuFileGetParameterSizeT(1, &size).err == 0 && size == 64);
    EXPECT(cuFileGetParameterMinMaxValue(1, &low, &high).err == 0 && low == 1 && high == 256);
    EXPECT(cuFileGetParameterMinMaxValue(0, &low, &high).err == 5022);
    EXPECT(cuFileGetParameterMinMaxValue(1, NULL, &high).err == 5022);
    EXPECT(cuFileGetParameterMinMaxValue(1, &low, NULL).err == 5022);
    EXPECT(cuFileGetParameterBool(14, &choice).err == 5022 && cuFileGetParameterBool(-1, &choice).err == 5022);
    /* Deprecated, and used by cuda-python's tests. */
    EXPECT(cuFileGetParameterBool(5, &choice).err == 0 && !choice && cuFileSetParameterBool(5, false).err == 0);
    EXPECT(cuFileGetParameterBool(1, NULL).err == 5022 && cuFileSetParameterBool(14, true).err == 5022);
    EXPECT(cuFileSetParameterBool(2, true).err == 0 && cuFileGetParameterBool(2, &choice).err == 0 && choice);
    EXPECT(cuFileSetParameterString(0, NULL).err == 5022 && cuFileSetParameterString(9, "x").err == 5022);
    EXPECT(cuFileSetParameterString(0, "ERROR").err == 0 && cuFileGetParameterString(0, text, 5).err == 5022);
    EXPECT(cuFileGetParameterString(0, NULL, 8).err == 5022 && cuFileGetParameterString(0, text, -1).err == 5022);
    EXPECT(cuFileGetParameterString(0, text, 6).err == 0 && strcmp(text, "ERROR") == 0);
    EXPECT(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 2).err == 5022);
    EXPECT(cuFileSetParameterPosixPoolSlabArray(NULL, counts, 2).err == 5022);
    EXPECT(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 0).err == 5022);
    EXPECT(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 2).err == 0);
    EXPECT(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 3).err == 5022);
    EXPECT(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 2).err == 0 && sizes[0] == 8 && counts[1] == 2);

    EXPECT(cuFileSetStatsLevel(4).err == 5022 && cuFileSetStatsLevel(-1).err == 5022 && cuFileSetStatsLevel(2).err == 0);
    EXPECT(cuFileGetStatsLevel(NULL).err == 5022 && cuFileGetStatsLevel(&number).err == 0 && number == 2);
    CUfileStatsLevel1_t statistics;
    EXPECT(cuFileStatsStart().err == 5001 && cuFileStatsStop().err == 5001 && cuFileStatsReset().err == 5001);
    EXPECT(cuFileGetStatsL1(NULL).err == 5022 && cuFileGetStatsL1(&statistics).err == 5001);
    EXPECT(cuFileGetStatsL2(NULL).err == 5022 && cuFileGetStatsL3(NULL).err == 5022);
    EXPECT(cuFileGetBARSizeInKB(0, NULL).err == 5022 && cuFileGetBARSizeInKB(-1, &size).err == 5022);
    /* 5011 without a GPU, 5022 with fewer. */
    int of_none = cuFileGetBARSizeInKB(1000, &size).err;
    EXPECT(of_none == 5011 || of_none == 5022);
    EXPECT(cuFileExportPCIeTopology(NULL).err == 5022 && cuFileExportPCIeTopology("x").err == 5030);
    unsigned flags = 7;
    EXPECT(cuFileDriverGetP2PFlags(99, &flags).err == 5022 && cuFileDriverGetP2PFlags(4, NULL).err == 5022);
    EXPECT(cuFileDriverGetP2PFlags(4, &flags).err == 0 && flags == 0 && cuFileDriverSetP2PFlags(4, 1).err == 5007);
}

static void files(const char *path)
{
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(0);
    int ends[2];
    EXPECT(cuFileHandleRegister(NULL, &description).err == 5022 && cuFileHandleRegister(&file, NULL).err == 5022);
    EXPECT(refusal(0, 0) == 5022 && refusal(77, 0) == 5022 && refusal(2, 0) == 5007 && refusal(3, 0) == 5008);
    EXPECT(refusal(1, -1) == 5022 && refusal(1, 123456) == 5018);
    EXPECT(pipe(ends) == 0 && refusal(1, ends[0]) == 5018);
    int folder = open("/", O_RDONLY), append = open(path, O_WRONLY | O_APPEND), name = open(path, O_PATH);
    EXPECT(refusal(1, folder) == 5018 && refusal(1, append) == 5019 && refusal(1, name) == 5019);
    EXPECT(cuFileUseCount() == 0);
    int fd = open(path, O_RDONLY), other = open(path, O_RDONLY);
    file = registered(fd);
    EXPECT(cuFileUseCount() == 1 && refusal(1, fd) == 5028);
    CUfileHandle_t second = registered(other);
    EXPECT(second != file);
    cuFileHandleDeregister(second);
    cuFileHandleDeregister(second);
    cuFileHandleDeregister(NULL);
    cuFileHandleDeregister((void *)0x123456789abc);
    char byte;
    errno = 0;
    EXPECT(cuFileRead(second, &byte, 1, 0, 0) == -1 && errno == EINVAL);
    errno = 0;
    EXPECT(cuFileRead(NULL, &byte, 1, 0, 0) == -1 && errno == EINVAL);
    EXPECT(cuFileWrite((void *)~(size_t)0, &byte, 1, 0, 0) == -1);
    /* The descriptor was closed without deregistering, and is another file now. */
    close(fd);
    int another = open("/proc/self/exe", O_RDONLY);
    EXPECT(another == fd);
    CUfileHandle_t program = registered(another);
    EXPECT(cuFileRead(program, &byte, 1, 0, 0) == 1 && byte == 0x7f);
    EXPECT(cuFileRead(file, &byte, 1, 1, 0) == 1);
    cuFileHandleDeregister(program);
    cuFileHandleDeregister(file);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
    }
    close(folder), close(append), close(name), close(other), close(another);
}

static void memory_and_ranges(const char *path)
{
    CUfileHandle_t file = registered(open(path, O_RDONLY));
    static char memory[10000];
    EXPECT(cuFileBufRegister(NULL, 1, 0).err == 5022 && cuFileBufRegister(memory, 0, 0).err == 5022);
    EXPECT(cuFileBufRegister(memory, 1, 99).err == 5022 && cuFileBufRegister(memory, ~(size_t)0, 0).err == 5022);
    EXPECT(cuFileBufRegister((void *)0x1000, 10, 0).err == 5022);
    EXPECT(cuFileBufDeregister(NULL).err == 5022 && cuFileBufDeregister(memory).err == 5022);
    EXPECT(cuFileBufRegister(memory, 5000, 0).err == 0 && cuFileBufRegister(memory, 100, 0).err == 5023);
    EXPECT(cuFileRead(file, memory, 5000, 0, 0) == 5000);
    EXPECT(cuFileRead(file, memory, 5001, 0, 0) == -5017 && cuFileRead(file, memory, 1, 0, 5000) == -5017);
    EXPECT(cuFileRead(file, memory, 100, 0, 4901) == -5017 && cuFileRead(file, memory, 100, 0, 4900) == 100);
    EXPECT(cuFileBufDeregister(memory + 1).err == 5022);
    EXPECT(cuFileBufDeregister(memory).err == 0 && cuFileBufDeregister(memory).err == 5022);
    EXPECT(cuFileRead(file, memory, 10000, 0, 0) == 10000);

    EXPECT(cuFileRead(file, NULL, 1, 0, 0) == -5022 && cuFileRead(file, NULL, 0, 0, 0) == -5022);
    EXPECT(cuFileRead(file, memory, 1, -1, 0) == -5022 && cuFileRead(file, memory, 1, 0, -1) == -5022);
    EXPECT(cuFileRead(file, memory, ~(size_t)0, 0, 0) == -5022);
    EXPECT(cuFileRead(file, memory, 1, 0, 0x7fffffffffffffff) == -1 && errno == EFAULT);
    EXPECT(cuFileRead(file, (void *)~(size_t)0, 100, 0, 0) == -5022);
    errno = 0;
    EXPECT(cuFileRead(file, (void *)0x10, 100, 0, 0) == -1 && errno == EFAULT);
    char *nobody = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = 0;
    EXPECT(cuFileRead(file, nobody, 100, 0, 0) == -1 && errno == EFAULT);
    EXPECT(cuFileRead(file, memory, 1, 0x7fffffffffffffff, 0) <= 0);
    errno = 0;
    EXPECT(cuFileWrite(file, memory, 1, 0, 0) == -1 && errno == EBADF);
    CUfileIOVec_t place = {memory, 10}, long_place = {memory, ~(size_t)0 / 2}, none = {NULL, 10};
    CUfileIOVec_t longer[3] = {long_place, long_place, long_place};
    EXPECT(cuFileReadv(file, &place, 1, 0, 1) == -5022 && cuFileReadv(file, NULL, 1, 0, 0) == -5022);
    EXPECT(cuFileReadv(file, &none, 1, 0, 0) == -5022 && cuFileReadv(file, longer, 3, 0, 0) == -5022);
    EXPECT(cuFileReadv(file, &place, 1, -1, 0) == -5022 && cuFileReadv(file, &place, 1 << 20, 0, 0) == -5022);
    EXPECT(cuFileWritev(file, &place, 1, 0, 0) == -1 && errno == EBADF);
    EXPECT(cuFileReadv(NULL, &place, 1, 0, 0) == -1 && errno == EINVAL);
    cuFileHandleDeregister(file);

    int full = open("/dev/full", O_RDWR);
    EXPECT(refusal(1, full) == 5018);
    close(full);
    int write_only = open(path, O_WRONLY);
    file = registered(write_only);
    errno = 0;
    EXPECT(cuFileRead(file, memory, 1, 0, 0) == -1 && errno == EBADF);
    cuFileHandleDeregister(file);
    close(write_only);
}

static void batches(const char *path)
{
    enum { BYTES = 1000 };
    static char memory[4 * BYTES];
    CUfileHandle_t file = registered(open(path, O_RDONLY));
    CUfileBatchHandle_t batch;
    CUfileIOEvents_t events[4];
    unsigned count = 4;
    EXPECT(cuFileBatchIOSetUp(NULL, 1).err == 5022 && cuFileBatchIOSetUp(&batch, 0).err == 5022);
    EXPECT(cuFileBatchIOSetUp(&batch, 129).err == 5022 && cuFileBatchIOSetUp(&batch, 4).err == 0);
    CUfileIOParams_t requests[5];
    for (int i = 0; i < 5; i++) {
        requests[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file, .opcode = CUFILE_READ};
        requests[i].u.batch.devPtr_base = memory;
        requests[i].u.batch.size = BYTES;
    }
    EXPECT(cuFileBatchIOSubmit(NULL, 1, requests, 0).err == 5022);
    EXPECT(cuFileBatchIOSubmit((void *)0x77777, 1, requests, 0).err == 5022);
    EXPECT(cuFileBatchIOSubmit(batch, 0, requests, 0).err == 5022 && cuFileBatchIOSubmit(batch, 1, NULL, 0).err == 5022);
    EXPECT(cuFileBatchIOSubmit(batch, 1, requests, 1).err == 5022 && cuFileBatchIOSubmit(batch, 5, requests, 0).err == 5022);
    CUfileIOParams_t wrong = requests[0];
    wrong.mode = 0;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err == 5022);
    wrong = requests[0], wrong.opcode = 7;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err == 5022);
    wrong = requests[0], wrong.fh = NULL;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err != 0);
    wrong = requests[0], wrong.opcode = CUFILE_WRITE;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err != 0);
    wrong = requests[0], wrong.u.batch.file_offset = -1;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err == 5022);
    wrong = requests[0], wrong.u.batch.devPtr_base = NULL;
    EXPECT(cuFileBatchIOSubmit(batch, 1, &wrong, 0).err == 5022);

    EXPECT(cuFileBatchIOGetStatus(NULL, 0, &count, events, NULL).err == 5022);
    EXPECT(cuFileBatchIOGetStatus(batch, 0, NULL, events, NULL).err == 5022);
    EXPECT(cuFileBatchIOGetStatus(batch, 0, &count, NULL, NULL).err == 5022);
    EXPECT(cuFileBatchIOGetStatus(batch, 5, &count, events, NULL).err == 5022);
    struct timespec no_time = {.tv_sec = 0, .tv_nsec = -1}, long_time = {.tv_sec = 0x7fffffffffffffff, .tv_nsec = 0};
    EXPECT(cuFileBatchIOGetStatus(batch, 1, &count, events, &no_time).err == 5022);
    /* Nothing is under way, so nobody waits. */
    EXPECT(cuFileBatchIOGetStatus(batch, 4, &count, events, &long_time).err == 0 && count == 0);

    /* A request whose address is wild fails by itself. */
    requests[1].u.batch.devPtr_base = (void *)0x1000;
    requests[2].u.batch.file_offset = 1 << 30;
    EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0);
    EXPECT(cuFileBatchIOSubmit(batch, 1, requests, 0).err == 5037);
    count = 4;
    EXPECT(cuFileBatchIOGetStatus(batch, 4, &count, events, NULL).err == 0 && count == 4);
    int complete = 0, failed = 0;
    for (int i = 0; i < 4; i++) {
        complete += events[i].status == CUFILE_COMPLETE && (events[i].ret == BYTES || events[i].ret == 0);
        failed += events[i].status == CUFILE_FAILED && (ssize_t)events[i].ret == -EFAULT;
    }
    EXPECT(complete == 3 && failed == 1);

    EXPECT(cuFileBatchIOCancel(NULL).err == 5047 && cuFileBatchIOCancel(batch).err == 0);
    requests[1].u.batch.devPtr_base = memory;
    for (int i = 0; i < 50; i++) {
        EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0 && cuFileBatchIOCancel(batch).err == 0);
        count = 4;
        EXPECT(cuFileBatchIOGetStatus(batch, 4, &count, events, NULL).err == 0 && count == 0);
    }
    EXPECT(cuFileBatchIOSubmit(batch, 4, requests, 0).err == 0);
    cuFileBatchIODestroy(batch);
    cuFileBatchIODestroy(batch);
    cuFileBatchIODestroy(NULL);
    EXPECT(cuFileBatchIOSubmit(batch, 1, requests, 0).err == 5022 && cuFileBatchIOCancel(batch).err == 5047);
    cuFileHandleDeregister(file);
}

static void streams(const char *path)
{
    CUfileHandle_t file = registered(open(path, O_RDONLY));
    char memory[100];
    size_t size = 100;
    off_t offset = 0, place = 0;
    ssize_t done = 0;
    CUstream stream = NULL;
    EXPECT(cuFileStreamRegister(stream, 16).err == 5022 && cuFileStreamDeregister((void *)0x5).err == 0);
    EXPECT(cuFileReadAsync(NULL, memory, &size, &offset, &place, &done, stream).err != 0);
    EXPECT(cuFileReadAsync(file, NULL, &size, &offset, &place, &done, stream).err == 5022);
    EXPECT(cuFileReadAsync(file, memory, NULL, &offset, &place, &done, stream).err == 5022);
    EXPECT(cuFileReadAsync(file, memory, &size, NULL, &place, &done, stream).err == 5022);
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, NULL, &done, stream).err == 5022);
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, &place, NULL, stream).err == 5022);
    EXPECT(cuFileWriteAsync(file, memory, &size, &offset, &place, &done, stream).err != 0);
    size = ~(size_t)0;
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, &place, &done, stream).err == 5022);
    size = 100, offset = -1;
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, &place, &done, stream).err == 0);
    EXPECT(cuFileStreamDeregister(stream).err == 0 && done == -5022);
    offset = 0;
    EXPECT(cuFileReadAsync(file, (void *)0x10, &size, &offset, &place, &done, stream).err == 0);
    EXPECT(cuFileStreamDeregister(stream).err == 0 && done == -EFAULT);
    cuFileHandleDeregister(file);
}

static void a_child(const char *path)
{
    int fd = open(path, O_RDONLY), other = open(path, O_RDONLY);
    CUfileHandle_t file = registered(fd);
    CUfileBatchHandle_t batch;
    static char memory[1000];
    EXPECT(cuFileRead(file, memory, 1000, 0, 0) == 1000 && cuFileBatchIOSetUp(&batch, 4).err == 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        CUfileHandle_t another;
        CUfileDescr_t description = of_descriptor(other);
        EXPECT(cuFileRead(file, memory, 1000, 0, 0) == -5011 && cuFileUseCount() == 0);
        CUfileError_t error = cuFileHandleRegister(&another, &description);
        EXPECT(error.err == 5011 && error.cu_err == 3 && cuFileDriverOpen().err == 5011);
        EXPECT(cuFileBatchIOCancel(batch).err == 5011 && cuFileDriverClose_v2().err == 5011);
        EXPECT(cuFileStreamDeregister(NULL).err == 5011);
        cuFileHandleDeregister(file);
        exit(0);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(file);
    close(fd), close(other);
}

static void sessions(const char *path)
{
    size_t size;
    char byte;
    EXPECT(cuFileUseCount() == 1 && cuFileDriverOpen().err == 0 && cuFileUseCount() == 2);
    EXPECT(cuFileSetParameterSizeT(1, 3).err == 5026 && cuFileSetParameterBool(2, false).err == 5026);
    EXPECT(cuFileSetParameterString(0, "x").err == 5026 && cuFileSetParameterPosixPoolSlabArray(&size, &size, 1).err == 5026);
    EXPECT(cuFileDriverSetMaxDirectIOSize(64).err == 0);
    CUfileDrvProps_t properties;
    EXPECT(cuFileDriverGetProperties(&properties).err == 0 && properties.nvfs.max_direct_io_size == 1024);
    int fd = open(path, O_RDONLY);
    CUfileHandle_t file = registered(fd);
    EXPECT(cuFileDriverClose_v2().err == 0 && cuFileRead(file, &byte, 1, 0, 0) == 1);
    size = 1;
    off_t negative = -1, place = 0;
    ssize_t done = 0;
    CUstream stream = NULL;
    EXPECT(cuFileStreamRegister(stream, 2).err == 0);
    EXPECT(cuFileReadAsync(file, &byte, &size, &negative, &place, &done, stream).err == 5022);
    EXPECT(cuFileDriverClose_v2().err == 0 && cuFileUseCount() == 0);
    EXPECT(cuFileRead(file, &byte, 1, 0, 0) == -1 && errno == EINVAL && cuFileDriverClose_v2().err == 5001);
    EXPECT(cuFileDriverOpen().err == 0);
    file = registered(fd);
    /* The last close has forgotten that offsets on this stream are final when they are submitted. */
    EXPECT(cuFileReadAsync(file, &byte, &size, &negative, &place, &done, stream).err == 0);
    EXPECT(cuFileStreamDeregister(stream).err == 0 && done == -5022);
    EXPECT(cuFileRead(file, &byte, 1, 0, 0) == 1 && cuFileDriverClose().err == 0);
    close(fd);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    before_it_is_open();
    files(argv[1]);
    memory_and_ranges(argv[1]);
    batches(argv[1]);
    streams(argv[1]);
    a_child(argv[1]);
    sessions(argv[1]);
    printf("all refused\n");
    return 0;
}
