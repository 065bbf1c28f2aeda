/* Reads a file into device memory and prints the first bytes that are there:
 *
 *   cc read.c -lbifolio -o read && ./read FILE [DEVICE]
 */
#include <bifolio.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(bf_status status)
{
    if (status != BF_OK) {
        fprintf(stderr, "read: %s\n", bf_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: read FILE [DEVICE]\n");
        return 2;
    }
    bf_context *context;
    bf_file *file;
    bf_ptr memory;
    uint64_t size;
    check(bf_context_open(argc > 2 ? argv[2] : NULL, NULL, &context));
    check(bf_open(context, argv[1], BF_READ, &file));
    check(bf_size(file, &size));
    check(bf_alloc(context, size, &memory));

    char *plan;
    check(bf_explain(file, size, 0, &plan));
    printf("%s\n", plan);
    bf_string_free(plan);

    int64_t read = bf_read(file, memory, size, 0);
    if (read < 0) {
        check((bf_status)read);
    }
    char head[16] = {0};
    check(bf_copy_to_host(context, head, memory, size < 15 ? (size_t)size : 15));
    printf("%" PRId64 " bytes in %s: %s\n", read, bf_device(context), head);

    check(bf_free(context, memory));
    bf_close(file);
    bf_context_close(context);
    return 0;
}
