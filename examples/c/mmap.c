/* Two devices have one file mapped, and write to neighbouring bytes of it at the same time:
 *
 *   cc mmap.c -lbifolio -o mmap && ./mmap FILE [DEVICE [DEVICE]]
 *
 * The first writes the digits at even places, the second letters at odd ones. Copies stand for kernels here.
 */
#define _DEFAULT_SOURCE
#include <bifolio.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 26 };

static void check(bf_status status)
{
    if (status != BF_OK) {
        fprintf(stderr, "mmap: %s\n", bf_last_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: mmap FILE [DEVICE [DEVICE]]\n");
        return 2;
    }
    const char *devices[2] = {argc > 2 ? argv[2] : "host:0", argc > 3 ? argv[3] : "host:1"};
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, LENGTH) != 0) {
        perror(argv[1]);
        return 1;
    }
    bf_context *context[2];
    bf_ptr mapping[2];
    for (int i = 0; i < 2; i++) {
        check(bf_context_open(devices[i], NULL, &context[i]));
        check(bf_mmap(devices[i], LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | BF_MAP_ONGPU, fd, 0, &mapping[i]));
    }
    close(fd); /* the mappings need it no more */

    /* Both have it at once; neither sees yet what the other does. */
    check(bf_macquire(mapping[0], LENGTH));
    check(bf_macquire(mapping[1], LENGTH));
    for (int place = 0; place < LENGTH; place++) {
        char byte = place % 2 == 0 ? (char)('0' + place / 2 % 10) : (char)('a' + place);
        check(bf_copy_from_host(context[place % 2], mapping[place % 2] + (unsigned)place, &byte, 1));
    }
    check(bf_mrelease(mapping[0], LENGTH));
    check(bf_mrelease(mapping[1], LENGTH));

    /* Whoever acquires it now has both. */
    char seen[LENGTH + 1] = {0};
    check(bf_macquire(mapping[0], LENGTH));
    check(bf_copy_to_host(context[0], seen, mapping[0], LENGTH));
    check(bf_mrelease(mapping[0], LENGTH));
    printf("%s has %s\n", bf_device(context[0]), seen);

    check(bf_msync(mapping[1], LENGTH)); /* the file has both, too */
    char *json;
    check(bf_cache_stats(&json));
    printf("%s\n", json);
    bf_string_free(json);

    for (int i = 0; i < 2; i++) {
        check(bf_munmap(mapping[i], LENGTH));
        bf_context_close(context[i]);
    }
    return 0;
}
