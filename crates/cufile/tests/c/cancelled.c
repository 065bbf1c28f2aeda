/* A batch that is cancelled: what KvikIO's example of one checks, and what a program needs around that. */
#include "interface.h"
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PARTS = 4, BYTES = 1024, LONG = 4 << 20, ROUNDS = 100 };

static unsigned char content[PARTS * LONG], memory[PARTS * LONG];

static void aim(CUfileIOParams_t *requests, CUfileHandle_t file, size_t bytes)
{
    for (size_t i = 0; i < PARTS; i++) {
        requests[i] = (CUfileIOParams_t){.mode = CUFILE_BATCH, .fh = file, .opcode = CUFILE_READ,
                                         .cookie = (void *)(i + 1)};
        requests[i].u.batch.devPtr_base = memory;
        requests[i].u.batch.devPtr_offset = requests[i].u.batch.file_offset = (off_t)(i * bytes);
        requests[i].u.batch.size = bytes;
    }
}

/* All parts are there, each once. */
static void carried_out(CUfileBatchHandle_t batch, CUfileIOParams_t *requests, size_t bytes)
{
    CUfileIOEvents_t events[PARTS];
    unsigned count = PARTS, seen = 0;
    memset(memory, 0, sizeof memory);
    EXPECT(cuFileBatchIOSubmit(batch, PARTS, requests, 0).err == 0);
    EXPECT(cuFileBatchIOGetStatus(batch, PARTS, &count, events, NULL).err == 0 && count == PARTS);
    for (unsigned i = 0; i < count; i++) {
        EXPECT(events[i].status == CUFILE_COMPLETE && events[i].ret == bytes);
        seen |= 1u << (size_t)events[i].cookie;
    }
    EXPECT(seen == 0x1e && memcmp(memory, content, PARTS * bytes) == 0);
}

/* Nothing comes, however long one waits, and nobody has to wait for that. */
static void nothing_comes(CUfileBatchHandle_t batch)
{
    CUfileIOEvents_t events[PARTS];
    unsigned count = PARTS;
    EXPECT(cuFileBatchIOGetStatus(batch, PARTS, &count, events, NULL).err == 0 && count == 0);
    count = PARTS;
    struct timespec now = {0, 0};
    EXPECT(cuFileBatchIOGetStatus(batch, 0, &count, events, &now).err == 0 && count == 0);
}

int main(int argc, char **argv)
{
    EXPECT(argc == 2);
    int fd = open(argv[1], O_RDONLY);
    EXPECT(fd >= 0 && read(fd, content, sizeof content) == (ssize_t)sizeof content);
    CUfileHandle_t file;
    CUfileDescr_t description = of_descriptor(fd);
    CUfileBatchHandle_t batch;
    CUfileIOParams_t requests[PARTS];
    EXPECT(cuFileDriverOpen().err == 0 && cuFileHandleRegister(&file, &description).err == 0);
    EXPECT(cuFileBatchIOSetUp(&batch, PARTS).err == 0);
    EXPECT(cuFileBatchIOCancel(batch).err == 0);
    nothing_comes(batch);

    size_t sizes[] = {BYTES, LONG};
    for (int i = 0; i < 2; i++) {
        aim(requests, file, sizes[i]);
        carried_out(batch, requests, sizes[i]);
        for (int round = 0; round < ROUNDS; round++) {
            EXPECT(cuFileBatchIOSubmit(batch, PARTS, requests, 0).err == 0 && cuFileBatchIOCancel(batch).err == 0);
            /* No result will say when the memory is free, so it is by now. */
            memset(memory, 0x55, PARTS * sizes[i]);
            nothing_comes(batch);
            for (size_t at = 0; at < PARTS * sizes[i]; at++) {
                EXPECT(memory[at] == 0x55);
            }
        }
        EXPECT(cuFileBatchIOCancel(batch).err == 0);
        carried_out(batch, requests, sizes[i]);

        /* Results that were there before, and that nobody had fetched, are gone with the others. */
        EXPECT(cuFileBatchIOSubmit(batch, PARTS, requests, 0).err == 0);
        CUfileIOEvents_t event;
        unsigned count = 1;
        EXPECT(cuFileBatchIOGetStatus(batch, 1, &count, &event, NULL).err == 0 && count == 1);
        EXPECT(cuFileBatchIOCancel(batch).err == 0);
        nothing_comes(batch);
        carried_out(batch, requests, sizes[i]);
    }
    EXPECT(cuFileBatchIOSubmit(batch, PARTS, requests, 0).err == 0);
    cuFileBatchIODestroy(batch);
    cuFileHandleDeregister(file);
    EXPECT(cuFileDriverClose_v2().err == 0);
    printf("all cancelled\n");
    return 0;
}
