/* Two libraries in one process map one file: the shim, whose calls are those of the C library, or libbifolio.so by its
 * path. Each stores a byte of the same page and releases it at the same moment as the other; after that each must see
 * both. They have one cache: what one maps where the other has mapped it has the same address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAP_ONGPU 0x2000000
#define SIZE 5000
#define ROUNDS 500

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "line %d: %s is false (errno %d)\n", __LINE__, #condition, errno);  \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

struct face {
    /* NULL for the shim. */
    void *library;
    volatile char *bytes;
    int number;
};

static pthread_barrier_t barrier;
static const char *path;

static void *function(struct face *face, const char *of_library, const char *of_shim) {
    void *found = face->library ? dlsym(face->library, of_library) : dlsym(RTLD_DEFAULT, of_shim);
    CHECK(found != NULL);
    return found;
}

static void map(struct face *face, const char *library) {
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ONGPU;
    const char *device = face->number ? "host:1" : "host:0";
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    if (strcmp(library, "shim") == 0) {
        setenv("BIFOLIO_DEVICE", device, 1);
        face->bytes = mmap(NULL, SIZE, protection, flags, fd, 0);
        CHECK((char *)face->bytes != MAP_FAILED);
    } else {
        face->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        CHECK(face->library != NULL);
        int32_t (*bf_mmap)(const char *, uint64_t, int, int, int, uint64_t, uint64_t *);
        *(void **)&bf_mmap = function(face, "bf_mmap", "");
        uint64_t mapping = 0;
        CHECK(bf_mmap(device, SIZE, protection, flags, fd, 0, &mapping) == 0);
        face->bytes = (char *)(uintptr_t)mapping;
    }
    CHECK(close(fd) == 0);
}

static void part(struct face *face, const char *of_library, const char *of_shim) {
    if (face->library) {
        int32_t (*call)(uint64_t, uint64_t);
        *(void **)&call = function(face, of_library, "");
        if (call((uintptr_t)face->bytes, SIZE) != 0) {
            const char *(*last_error)(void);
            *(void **)&last_error = function(face, "bf_last_error", "");
            fprintf(stderr, "%s: %s\n", of_library, last_error());
            exit(1);
        }
    } else {
        int (*call)(void *, size_t, void *);
        *(void **)&call = function(face, "", of_shim);
        CHECK(call((void *)face->bytes, SIZE, NULL) == 0);
    }
}

static void *use(void *argument) {
    struct face *face = argument;
    for (int round = 1; round <= ROUNDS; round++) {
        part(face, "bf_macquire", "macquire");
        face->bytes[face->number] = (char)round;
        pthread_barrier_wait(&barrier);
        part(face, "bf_mrelease", "mrelease");
        pthread_barrier_wait(&barrier);
        part(face, "bf_macquire", "macquire");
        if (face->bytes[0] != (char)round || face->bytes[1] != (char)round) {
            fprintf(stderr, "round %d: library %d sees %d and %d\n", round, face->number, face->bytes[0],
                    face->bytes[1]);
            exit(1);
        }
        part(face, "bf_mrelease", "mrelease");
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    path = arguments[1];
    struct face faces[2] = {{.number = 0}, {.number = 1}};
    pthread_t threads[2];
    pthread_barrier_init(&barrier, NULL, 2);
    for (int number = 0; number < 2; number++)
        map(&faces[number], arguments[2 + number]);
    CHECK(faces[0].bytes != faces[1].bytes);
    for (int number = 0; number < 2; number++)
        CHECK(pthread_create(&threads[number], NULL, use, &faces[number]) == 0);
    for (int number = 0; number < 2; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    struct face again = {.number = 0};
    map(&again, arguments[3]);
    CHECK(again.bytes == faces[0].bytes);
    part(&again, "bf_munmap", "munmap");
    puts("both saw both");
    return 0;
}
