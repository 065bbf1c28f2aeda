/* The loop that bench.c and preload_bench.c share: commands on standard input, one line of answer for each.
 *
 *   read LENGTH COUNT SEED   -> ok SECONDS CPU_SECONDS    COUNT reads of LENGTH bytes, all over the file
 *   dump START LENGTH PATH   -> ok                        what the latest read left in memory, into a file
 *   release                  -> ok                        frees the memory, and what else was made for reading
 *
 * A failure is answered by "error SENTENCE", and the loop goes on. Scripts that compare several programs start
 * each once and let them take turns, so that start-up is not measured.
 */
#ifndef BIFOLIO_EXAMPLES_REQUESTS_H
#define BIFOLIO_EXAMPLES_REQUESTS_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a program does for the loop. Functions return NULL, or a sentence that says what failed. */
struct reader {
    const char *path;
    uint64_t file_bytes;
    const char *(*allocate)(struct reader *reader, uint64_t length);
    const char *(*read)(struct reader *reader, uint64_t offset, uint64_t length);
    const char *(*copy)(struct reader *reader, void *to, uint64_t start, uint64_t length);
    void (*release)(struct reader *reader);
};

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Where request `number` begins: spread over the file without order, the same in every language. */
static uint64_t offset_of(uint64_t number, uint64_t seed, uint64_t slots, uint64_t length)
{
    return (seed + number) * UINT64_C(0x9E3779B97F4A7C15) % slots * length;
}

static const char *timed_reads(struct reader *reader, uint64_t length, uint64_t count, uint64_t seed, double taken[2])
{
    uint64_t slots = reader->file_bytes / length;
    double start = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t number = 0; number < count; number++) {
        const char *failure = reader->read(reader, offset_of(number, seed, slots, length), length);
        if (failure != NULL) {
            return failure;
        }
    }
    taken[0] = seconds_of(CLOCK_MONOTONIC) - start;
    taken[1] = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    return NULL;
}

static const char *dump(struct reader *reader, uint64_t start, uint64_t length, const char *path)
{
    void *bytes = malloc(length ? length : 1);
    FILE *file = fopen(path, "wb");
    const char *failure = bytes == NULL || file == NULL ? "the dump has no memory or no file" : NULL;
    if (failure == NULL) {
        failure = reader->copy(reader, bytes, start, length);
    }
    if (failure == NULL && fwrite(bytes, 1, length, file) != length) {
        failure = "the dump could not be written";
    }
    if (file != NULL && fclose(file) != 0 && failure == NULL) {
        failure = "the dump could not be written";
    }
    free(bytes);
    return failure;
}

static int serve(struct reader *reader, const char *note)
{
    char line[4096], path[4096];
    uint64_t a, b, c, allocated = 0;
    printf("ready %s\n", note);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *failure = NULL;
        double taken[2] = {-1, 0};
        if (sscanf(line, "read %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c) == 3) {
            if (a == 0 || a > reader->file_bytes) {
                failure = "a request must have a byte, and no more than the file";
            } else if (a != allocated) {
                reader->release(reader);
                failure = reader->allocate(reader, a);
                allocated = failure == NULL ? a : 0;
            }
            if (failure == NULL) {
                failure = timed_reads(reader, a, b, c, taken);
            }
        } else if (sscanf(line, "dump %" SCNu64 " %" SCNu64 " %4095s", &a, &b, path) == 3) {
            failure = a + b > allocated ? "nothing so long was read" : dump(reader, a, b, path);
        } else if (strcmp(line, "release\n") == 0) {
            reader->release(reader);
            allocated = 0;
        } else {
            failure = "no such command";
        }
        if (failure != NULL) {
            printf("error %s\n", failure);
        } else if (taken[0] >= 0) {
            printf("ok %.9f %.9f\n", taken[0], taken[1]);
        } else {
            printf("ok\n");
        }
        fflush(stdout);
    }
    return 0;
}

#endif
