/* Reads every second block of 512 bytes of a file by one request, into one piece of device memory:
 *
 *   cc batch.c -lbifolio -o batch && ./batch FILE [DEVICE] > BLOCKS
 */
#include <bifolio.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 512 };

static void check(bf_status status)
{
    if (status != BF_OK) {
        fprintf(stderr, "batch: %s\n", bf_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: batch FILE [DEVICE]\n");
        return 2;
    }
    bf_context *context;
    bf_file *file;
    bf_ptr memory;
    uint64_t size;
    check(bf_context_open(argc > 2 ? argv[2] : NULL, NULL, &context));
    check(bf_open(context, argv[1], BF_READ, &file));
    check(bf_advise(file, BF_RANDOM));
    check(bf_size(file, &size));

    size_t count = (size_t)(size / (2 * BLOCK));
    bf_extent *extents = malloc((count + 1) * sizeof *extents);
    unsigned char *host = malloc(count * BLOCK + 1);
    if (extents == NULL || host == NULL) {
        fprintf(stderr, "batch: out of memory\n");
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        extents[i] = (bf_extent){.offset = i * 2 * BLOCK, .length = BLOCK, .place = i * BLOCK};
    }
    check(bf_alloc(context, count * BLOCK, &memory));
    int64_t read = bf_read_batch(file, extents, count, memory, count * BLOCK);
    if (read < 0) {
        check((bf_status)read);
    }
    check(bf_copy_to_host(context, host, memory, (size_t)read));
    fwrite(host, 1, (size_t)read, stdout);

    free(extents);
    free(host);
    check(bf_free(context, memory));
    bf_close(file);
    bf_context_close(context);
    return 0;
}
