/* A program as people write them: memory of the CPU, and every way to read and write. */
#define _GNU_SOURCE
#include "interface.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 3000001, THREADS = 8 };

static unsigned char content[SIZE];
static CUfileHandle_t shared;

static void *read_often(void *argument)
{
    unsigned char *memory = malloc(70000);
    EXPECT(memory != NULL);
    for (int i = 0; i < 300; i++) {
        off_t offset = (i * 9973) % (SIZE - 70000);
        EXPECT(cuFileRead(shared, memory, 69000, offset, 1000) == 69000);
        EXPECT(memcmp(memory + 1000, content + offset, 69000) == 0);
    }
    free(memory);
    return argument;
}

static void whole_and_parts(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECT);
    EXPECT(fd >= 0);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(cuFileHandleRegister(&file, &description).err == 0);
    /* The descriptor is not needed any more. */
    close(fd);
    unsigned char *memory = malloc(SIZE + 10);
    EXPECT(memory != NULL && cuFileBufRegister(memory, SIZE + 10, 0).err == 0);
    EXPECT(cuFileRead(file, memory, SIZE, 0, 0) == SIZE && memcmp(memory, content, SIZE) == 0);
    memset(memory, 0, SIZE + 10);
    EXPECT(cuFileRead(file, memory, SIZE, 12345, 7) == SIZE - 12345);
    EXPECT(memcmp(memory + 7, content + 12345, SIZE - 12345) == 0 && memory[6] == 0 && memory[SIZE - 12345 + 7] == 0);
    EXPECT(cuFileRead(file, memory, 100, SIZE, 0) == 0 && cuFileRead(file, memory, 100, SIZE + 5000, 0) == 0);
    EXPECT(cuFileRead(file, memory, 0, 0, 0) == 0);
    EXPECT(cuFileBufDeregister(memory).err == 0);

    CUfileIOVec_t places[3] = {{memory, 1000}, {NULL, 0}, {memory + 5000, 70000}};
    EXPECT(cuFileReadv(file, places, 3, 99, 0) == 71000);
    EXPECT(memcmp(memory, content + 99, 1000) == 0 && memcmp(memory + 5000, content + 1099, 70000) == 0);
    EXPECT(cuFileReadv(file, places, 3, SIZE - 1500, 0) == 1500 && cuFileReadv(file, NULL, 0, 0, 0) == 0);

    shared = file;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, read_often, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    cuFileHandleDeregister(file);
    free(memory);
}

static void there_and_back(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DSYNC, 0600);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(fd >= 0 && cuFileHandleRegister(&file, &description).err == 0);
    EXPECT(cuFileWrite(file, content, SIZE - 1, 5, 1) == SIZE - 1);
    EXPECT(lseek(fd, 0, SEEK_END) == SIZE + 4);
    CUfileIOVec_t places[2] = {{content, 10}, {content + 100, 20}};
    EXPECT(cuFileWritev(file, places, 2, 0, 0) == 30);
    unsigned char *memory = calloc(1, SIZE + 4);
    EXPECT(memory != NULL && cuFileRead(file, memory, SIZE + 4, 0, 0) == SIZE + 4);
    EXPECT(memcmp(memory, content, 10) == 0 && memcmp(memory + 10, content + 100, 20) == 0);
    EXPECT(memcmp(memory + 30, content + 26, SIZE - 26) == 0);
    /* What others write is seen. */
    EXPECT(pwrite(fd, "elsewhere", 9, 1000000) == 9);
    EXPECT(cuFileRead(file, memory, 9, 1000000, 0) == 9 && memcmp(memory, "elsewhere", 9) == 0);
    /* A descriptor is another file by now, and its handle is of the former. */
    close(fd);
    int again = open(path, O_RDONLY);
    EXPECT(again == fd);
    cuFileHandleDeregister(file);
    description = of_descriptor(again);
    EXPECT(cuFileHandleRegister(&file, &description).err == 0);
    EXPECT(cuFileRead(file, memory, 10, 0, 0) == 10 && memcmp(memory, content, 10) == 0);
    cuFileHandleDeregister(file);
    close(again);
    free(memory);
}

static void batches(const char *path)
{
    enum { COUNT = 100, BYTES = 5000 };
    int fd = open(path, O_RDONLY);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(fd >= 0 && cuFileHandleRegister(&file, &description).err == 0);
    unsigned char *memory = malloc(COUNT * BYTES);
    CUfileIOParams_t requests[COUNT];
    for (int i = 0; i < COUNT; i++) {
        requests[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file, .opcode = CUFILE_READ,
                                         .cookie = (void *)(size_t)(i + 1)};
        requests[i].u.batch.devPtr_base = memory;
        requests[i].u.batch.devPtr_offset = i * BYTES;
        requests[i].u.batch.file_offset = i * 30000 + i;
        requests[i].u.batch.size = BYTES;
    }
    CUfileBatchHandle_t batch;
    EXPECT(cuFileBatchIOSetUp(&batch, COUNT).err == 0);
    for (int round = 0; round < 3; round++) {
        memset(memory, 0, COUNT * BYTES);
        EXPECT(cuFileBatchIOSubmit(batch, COUNT, requests, 0).err == 0);
        bool seen[COUNT + 1] = {false};
        for (int left = COUNT; left > 0;) {
            CUfileIOEvents_t events[30];
            unsigned count = 30;
            EXPECT(cuFileBatchIOGetStatus(batch, left < 10 ? (unsigned)left : 10, &count, events, NULL).err == 0);
            EXPECT(count >= 1 && count <= 30);
            for (unsigned i = 0; i < count; i++) {
                size_t number = (size_t)events[i].cookie;
                EXPECT(number >= 1 && number <= COUNT && !seen[number]);
                seen[number] = true;
                EXPECT(events[i].status == CUFILE_COMPLETE && events[i].ret == BYTES);
                EXPECT(memcmp(memory + (number - 1) * BYTES, content + (number - 1) * 30001, BYTES) == 0);
            }
            left -= (int)count;
        }
    }
    unsigned count = 1;
    CUfileIOEvents_t event;
    struct timespec now = {0, 0};
    EXPECT(cuFileBatchIOGetStatus(batch, 1, &count, &event, &now).err == 0 && count == 0);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(file);
    close(fd);
    free(memory);
}

static void streams(const char *path)
{
    int fd = open(path, O_RDWR);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    EXPECT(fd >= 0 && cuFileHandleRegister(&file, &description).err == 0);
    unsigned char *memory = malloc(SIZE);
    size_t size = SIZE, little = 9;
    off_t offset = 30, end = SIZE + 4, nothing = 0, ahead = 1000000;
    ssize_t read = -1, written = -1, again = -1;
    EXPECT(memory != NULL && cuFileStreamRegister(NULL, 15).err == 0);
    EXPECT(cuFileReadAsync(file, memory, &size, &offset, &nothing, &read, NULL).err == 0);
    EXPECT(cuFileWriteAsync(file, memory, &little, &end, &ahead, &written, NULL).err == 0);
    EXPECT(cuFileReadAsync(file, memory, &little, &end, &nothing, &again, NULL).err == 0);
    EXPECT(cuFileStreamDeregister(NULL).err == 0);
    EXPECT(read == SIZE - 26 && written == 9 && again == 9);
    EXPECT(memcmp(memory + 9, content + 26 + 9, 999) == 0 && memcmp(memory, memory + ahead, 9) == 0);
    cuFileHandleDeregister(file);
    close(fd);
    free(memory);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    int fd = open(argv[1], O_RDONLY);
    EXPECT(fd >= 0 && read(fd, content, SIZE) == SIZE);
    close(fd);
    EXPECT(cuFileDriverOpen().err == 0 && cuFileUseCount() == 1);
    whole_and_parts(argv[1]);
    there_and_back(argv[2]);
    batches(argv[1]);
    streams(argv[2]);
    EXPECT(cuFileDriverClose_v2().err == 0 && cuFileUseCount() == 0);
    printf("all there\n");
    return 0;
}
