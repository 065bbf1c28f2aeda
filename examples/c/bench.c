/* Measures bf_read in a loop; bench/compare starts it and says on standard input what to read:
 *
 *   cc -O2 bench.c -lbifolio -o bench && echo "read 1048576 1000 0" | ./bench FILE [DEVICE]
 */
#define _POSIX_C_SOURCE 200809L
#include <bifolio.h>

#include "requests.h"

static struct {
    bf_context *context;
    bf_file *file;
    bf_ptr memory;
} bench;

static const char *failure_of(bf_status status)
{
    return status == BF_OK ? NULL : bf_last_error();
}

/* The file is open while there is memory: a handle that has read the same bytes again and again keeps them
 * pinned in the page cache, and other programs could not be measured with a cold file then. */
static const char *allocate(struct reader *reader, uint64_t length)
{
    bf_status status = bf_open(bench.context, reader->path, BF_READ, &bench.file);
    return failure_of(status == BF_OK ? bf_alloc(bench.context, length, &bench.memory) : status);
}

static const char *read_once(struct reader *reader, uint64_t offset, uint64_t length)
{
    (void)reader;
    int64_t bytes = bf_read(bench.file, bench.memory, length, offset);
    if (bytes < 0) {
        return bf_last_error();
    }
    return (uint64_t)bytes == length ? NULL : "the file is shorter than it was";
}

static const char *copy(struct reader *reader, void *to, uint64_t start, uint64_t length)
{
    (void)reader;
    return failure_of(bf_copy_to_host(bench.context, to, bench.memory + start, length));
}

static void release(struct reader *reader)
{
    (void)reader;
    bf_free(bench.context, bench.memory);
    bf_close(bench.file);
    bench.memory = 0;
    bench.file = NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench FILE [DEVICE [unordered]]\n");
        return 2;
    }
    struct reader reader = {
        .path = argv[1], .allocate = allocate, .read = read_once, .copy = copy, .release = release};
    bf_file *file;
    /* Without the question what the default streams hold: what that costs. */
    if (argc > 3 && strcmp(argv[3], "unordered") == 0 && bf_order_after(BF_AFTER_NOTHING, NULL) != BF_OK) {
        printf("error %s\n", bf_last_error());
        return 1;
    }
    if (bf_context_open(argc > 2 ? argv[2] : NULL, NULL, &bench.context) != BF_OK ||
        bf_open(bench.context, argv[1], BF_READ, &file) != BF_OK || bf_size(file, &reader.file_bytes) != BF_OK) {
        printf("error %s\n", bf_last_error());
        return 1;
    }
    bf_close(file);
    char note[128];
    snprintf(note, sizeof note, "libbifolio %s on %s", bf_version(), bf_device(bench.context));
    int status = serve(&reader, note);
    release(&reader);
    bf_context_close(bench.context);
    return status;
}
