/* Copies a file through device memory: the next part is read while the one before is written.
 *
 *   cc async.c -lbifolio -o async && ./async FROM TO [DEVICE]
 */
#include <bifolio.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PART = 1 << 20 };

static void check(bf_status status)
{
    if (status != BF_OK) {
        fprintf(stderr, "async: %s\n", bf_last_error());
        exit(1);
    }
}

static uint64_t wait_for(bf_request *request)
{
    int64_t bytes = bf_request_wait(request);
    bf_request_free(request);
    if (bytes < 0) {
        check((bf_status)bytes);
    }
    return (uint64_t)bytes;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: async FROM TO [DEVICE]\n");
        return 2;
    }
    bf_context *context;
    bf_file *from, *to;
    bf_ptr memory[2];
    check(bf_context_open(argc > 3 ? argv[3] : NULL, NULL, &context));
    check(bf_open(context, argv[1], BF_READ, &from));
    check(bf_open(context, argv[2], BF_WRITE | BF_CREATE, &to));
    check(bf_alloc(context, PART, &memory[0]));
    check(bf_alloc(context, PART, &memory[1]));

    uint64_t at = 0;
    bf_request *writing = NULL, *reading;
    for (int turn = 0;; turn = !turn) {
        check(bf_submit_read(from, memory[turn], PART, at, &reading));
        uint64_t got = wait_for(reading);
        if (writing != NULL) {
            wait_for(writing);
            writing = NULL;
        }
        if (got == 0) {
            break;
        }
        check(bf_submit_write(to, memory[turn], got, at, 0, &writing));
        at += got;
    }
    check(bf_sync(to));
    printf("%" PRIu64 " bytes\n", at);

    bf_close(from);
    bf_close(to);
    bf_context_close(context); /* frees the memory, too */
    return 0;
}
