/* Calls the library wrongly, closes things in any order, and from many threads. */
#define _DEFAULT_SOURCE
#include <bifolio.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, bf_last_error()); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static bf_file *shared;

static void *map_often(void *name)
{
    int fd = open(name, O_RDWR);
    for (int i = 0; i < 50; i++) {
        bf_ptr mapping = 0;
        EXPECT(bf_mmap(i % 2 ? "host:0" : "host:1", 10000, PROT_READ, MAP_SHARED | BF_MAP_ONGPU, fd, 0, &mapping) == BF_OK);
        EXPECT(bf_macquire(mapping, 10000) == BF_OK && bf_mrelease(mapping, 10000) == BF_OK);
        EXPECT(bf_munmap(mapping, 10000) == BF_OK);
    }
    close(fd);
    return NULL;
}

static void mappings(const char *path)
{
    const int both = PROT_READ | PROT_WRITE, flags = MAP_SHARED | BF_MAP_ONGPU;
    bf_ptr mapping = 77;
    int fd = open(path, O_RDWR), read_only = open(path, O_RDONLY), ends[2];
    EXPECT(fd >= 0 && read_only >= 0 && pipe(ends) == 0);
    EXPECT(bf_mmap("host", 10000, both, flags, fd, 0, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("nonsense", 10000, both, flags, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("\xff", 10000, both, flags, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host:99", 10000, both, flags, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(strstr(bf_last_error(), "host:99") != NULL);
    EXPECT(bf_mmap("host", 0, both, flags, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host", 10000, PROT_NONE, flags, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host", 10000, both, flags | MAP_FIXED, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host", 10000, both, MAP_PRIVATE, fd, 0, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host", 10000, both, flags, fd, 7, &mapping) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mmap("host", 10000, both, flags, fd, 1 << 20, &mapping) == BF_ERROR_RANGE);
    EXPECT(bf_mmap("host", UINT64_MAX, both, flags, fd, 4096, &mapping) == BF_ERROR_RANGE);
    EXPECT(bf_mmap("host", 10000, both, flags, -1, 0, &mapping) == BF_ERROR_READ);
    EXPECT(bf_mmap("host", 10000, both, flags, 9999, 0, &mapping) == BF_ERROR_READ);
    EXPECT(bf_mmap("host", 10000, PROT_READ, flags, ends[0], 0, &mapping) == BF_ERROR_NOT_A_FILE);
    EXPECT(bf_mmap("host", 10000, both, flags, read_only, 0, &mapping) == BF_ERROR_PERMISSION);
    EXPECT(mapping == 77);
    EXPECT(bf_mmap("host", 10000, both, flags, fd, 0, &mapping) == BF_OK && mapping != 77);

    bf_ptr wild[] = {0, 1, UINT64_MAX, mapping - 1, mapping + 20000, (bf_ptr)(uintptr_t)&mapping};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        EXPECT(bf_macquire(wild[i], 1) == BF_ERROR_RANGE && bf_mrelease(wild[i], 1) == BF_ERROR_RANGE);
        EXPECT(bf_madvise(wild[i], 1, BF_WILLNEED) == BF_ERROR_RANGE);
        EXPECT(bf_msync(wild[i], 1) == BF_ERROR_RANGE && bf_munmap(wild[i], 10000) == BF_ERROR_RANGE);
    }
    EXPECT(bf_macquire(mapping, 0) == BF_ERROR_RANGE && bf_macquire(mapping, UINT64_MAX) == BF_ERROR_RANGE);
    EXPECT(bf_mrelease(mapping, 10000) == BF_ERROR_ARGUMENT && strstr(bf_last_error(), "not acquired") != NULL);
    EXPECT(bf_macquire(mapping + 5000, 3000) == BF_OK);
    EXPECT(bf_mrelease(mapping, 8000) == BF_ERROR_ARGUMENT);
    EXPECT(bf_mrelease(mapping + 5000, 3000) == BF_OK);
    EXPECT(bf_mrelease(mapping + 5000, 3000) == BF_ERROR_ARGUMENT);
    EXPECT(bf_cache_stats(NULL) == BF_ERROR_ARGUMENT);

    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        EXPECT(pthread_create(&threads[i], NULL, map_often, (void *)(uintptr_t)path) == 0);
    }
    for (int i = 0; i < 4; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }

    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        bf_ptr other = 0;
        char *json = NULL;
        int refused = bf_macquire(mapping, 1) == BF_ERROR_FORKED && bf_mrelease(mapping, 1) == BF_ERROR_FORKED;
        refused = refused && bf_msync(mapping, 1) == BF_ERROR_FORKED && bf_munmap(mapping, 10000) == BF_ERROR_FORKED;
        refused = refused && bf_mmap(NULL, 1, both, flags, fd, 0, &other) == BF_ERROR_FORKED && other == 0;
        refused = refused && bf_cache_stats(&json) == BF_ERROR_FORKED && strstr(bf_last_error(), "forked") != NULL;
        exit(refused ? 0 : 1); /* with what is done at the end of a process */
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    EXPECT(bf_munmap(mapping, 1) == BF_ERROR_RANGE && bf_munmap(mapping + 1, 10000) == BF_ERROR_RANGE);
    EXPECT(bf_munmap(mapping, 10000) == BF_OK && bf_munmap(mapping, 10000) == BF_ERROR_RANGE);
    close(fd);
    close(read_only);
    close(ends[0]);
    close(ends[1]);

    /* Nobody unmaps this one: what is released reaches the file when the process ends, and nothing else. */
    fd = open(path, O_RDWR);
    EXPECT(bf_mmap("host:2", 10000, both, flags, fd, 0, &mapping) == BF_OK);
    EXPECT(bf_macquire(mapping, 100) == BF_OK);
    memcpy((void *)(uintptr_t)(mapping + 10), "released", 8);
    EXPECT(bf_mrelease(mapping, 100) == BF_OK && bf_macquire(mapping, 100) == BF_OK);
    memcpy((void *)(uintptr_t)(mapping + 20), "not released", 12);
    close(fd);
}

static void *page_often(void *argument)
{
    for (int i = 0; i < 20; i++) {
        unsigned char *memory = NULL;
        EXPECT(bf_paged_alloc("host", 2 << 20, 1 << 19, 0, (void **)&memory) == BF_OK);
        for (size_t at = 0; at < 2 << 20; at += 4096) {
            memory[at] = (unsigned char)(at >> 12);
        }
        EXPECT(bf_paged_set_budget(memory, 1 << 20) == BF_OK);
        for (size_t at = 0; at < 2 << 20; at += 4096) {
            EXPECT(memory[at] == (unsigned char)(at >> 12));
        }
        EXPECT(bf_paged_free(memory) == BF_OK);
    }
    return argument;
}

static void paged(void)
{
    const uint64_t least = 1 << 19;
    void *memory = NULL, *other = NULL;
    char *sentence = (char *)&memory;
    bf_paged_statistics statistics = {.size = sizeof statistics};
    bf_status made = bf_paged_alloc("host", 8 * least, least, 0, &memory);
    if (made == BF_ERROR_PERMISSION) {
        EXPECT(strstr(bf_last_error(), "userfaultfd") != NULL);
        printf("regions: skipped: %s\n", bf_last_error());
        return;
    }
    EXPECT(made == BF_OK && memory != NULL && (uintptr_t)memory % 65536 == 0);
    EXPECT(bf_paged_alloc("host", 1, least, 0, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("nonsense", 1, least, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("\xff", 1, least, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("host:99", 1, least, 0, &other) == BF_ERROR_DEVICE);
    EXPECT(bf_paged_alloc("host", 0, least, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("host", 1, 0, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("host", 1, least - 1, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(strstr(bf_last_error(), "524288") != NULL);
    EXPECT(bf_paged_alloc("host", UINT64_MAX, least, 0, &other) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_alloc("host", UINT64_MAX / 2, UINT64_MAX, UINT64_MAX, &other) == BF_ERROR_ARGUMENT);
    EXPECT(other == NULL);
    EXPECT(bf_paged_alloc("host", 1, UINT64_MAX, UINT64_MAX, &other) == BF_OK && bf_paged_free(other) == BF_OK);

    memset(memory, 1, 8 * least);
    ((char *)memory)[8 * least - 1] = 2;
    EXPECT(((char *)memory)[0] == 1 && ((char *)memory)[8 * least - 1] == 2);
    void *wild[] = {NULL, (void *)1, (void *)UINTPTR_MAX, (char *)memory - 1, (char *)memory + 65536, &memory, other};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        EXPECT(bf_paged_free(wild[i]) == (wild[i] == NULL ? BF_OK : BF_ERROR_ARGUMENT));
        EXPECT(bf_paged_set_budget(wild[i], least) == BF_ERROR_ARGUMENT);
        EXPECT(bf_paged_stats(wild[i], &statistics) == BF_ERROR_ARGUMENT);
        EXPECT(bf_paged_trouble(wild[i], &sentence) == BF_ERROR_ARGUMENT);
        EXPECT(strstr(bf_last_error(), "bf_paged_alloc") != NULL);
    }
    EXPECT(bf_paged_set_budget(memory, 0) == BF_ERROR_ARGUMENT && bf_paged_set_budget(memory, 2 * least) == BF_OK);
    EXPECT(bf_paged_set_budget(memory, UINT64_MAX) == BF_OK && bf_paged_set_budget(memory, least) == BF_OK);
    EXPECT(bf_paged_stats(memory, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_stats(memory, &statistics) == BF_OK && statistics.size == sizeof statistics);
    EXPECT(statistics.new_blocks >= 64 && statistics.stored > 0 && statistics.lost == 0);
    statistics.size = 8;
    EXPECT(bf_paged_stats(memory, &statistics) == BF_ERROR_ARGUMENT && strstr(bf_last_error(), "size") != NULL);
    statistics.size = sizeof statistics;
    EXPECT(bf_paged_trouble(memory, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_paged_trouble(memory, &sentence) == BF_OK && sentence == NULL);

    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        EXPECT(pthread_create(&threads[i], NULL, page_often, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }

    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int refused = bf_paged_stats(memory, &statistics) == BF_ERROR_FORKED && bf_paged_free(memory) == BF_ERROR_FORKED;
        refused = refused && bf_paged_set_budget(memory, least) == BF_ERROR_FORKED;
        refused = refused && bf_paged_alloc("host", 1, least, 0, &other) == BF_ERROR_FORKED;
        exit(refused && strstr(bf_last_error(), "forked") != NULL ? 0 : 1);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    EXPECT(((char *)memory)[8 * least - 1] == 2);
    EXPECT(bf_paged_free(memory) == BF_OK && bf_paged_free(memory) == BF_ERROR_ARGUMENT);
    /* Nobody frees this one. */
    EXPECT(bf_paged_alloc("host", 8 * least, least, 0, &memory) == BF_OK);
    memset(memory, 3, 8 * least);
}

static void *read_often(void *argument)
{
    unsigned char *memory = malloc(4096);
    EXPECT(memory != NULL);
    for (int i = 0; i < 200; i++) {
        EXPECT(bf_read(shared, (bf_ptr)(uintptr_t)memory, 4096, (uint64_t)i) == 4096);
        if (i % 50 == 0) {
            EXPECT(bf_read(shared, 0, 10, 0) == BF_ERROR_ARGUMENT);
            EXPECT(strstr(bf_last_error(), "pointer") != NULL);
        }
    }
    free(memory);
    return argument;
}

int main(int argc, char **argv)
{
    EXPECT(argc == 3);
    EXPECT(bf_version()[0] != '\0' && bf_last_error()[0] == '\0');
    bf_context *context = NULL;
    bf_file *file = NULL;
    bf_request *request = NULL;
    bf_ptr memory = 0;
    uint64_t size = 0;
    char *json = NULL;
    unsigned char host[64];

    EXPECT(bf_context_open("nonsense:1", NULL, &context) == BF_ERROR_ARGUMENT);
    EXPECT(bf_context_open("host:7x", NULL, &context) == BF_ERROR_ARGUMENT);
    EXPECT(bf_context_open("\xff", NULL, &context) == BF_ERROR_ARGUMENT);
    EXPECT(bf_context_open(argv[2], NULL, NULL) == BF_ERROR_ARGUMENT);
    bf_options options = {.size = 3};
    EXPECT(bf_context_open(argv[2], &options, &context) == BF_ERROR_ARGUMENT);
    options = (bf_options){.size = sizeof options, .slot_bytes = 100};
    EXPECT(bf_context_open(argv[2], &options, &context) == BF_ERROR_ARGUMENT);
    options = (bf_options){.size = sizeof options, .profile_of = "/nonexistent"};
    EXPECT(bf_context_open(argv[2], &options, &context) == BF_ERROR_NOT_FOUND);
    options = (bf_options){.size = sizeof options, .threads = 2, .slot_bytes = 1 << 16, .pool_bytes = 1 << 20,
                           .mapped_bytes = UINT64_MAX, .readahead_bytes = SIZE_MAX, .profile_of = argv[1]};
    EXPECT(bf_context_open(argv[2], &options, &context) == BF_OK);

    EXPECT(bf_open(NULL, argv[1], BF_READ, &file) == BF_ERROR_ARGUMENT);
    EXPECT(bf_open(context, NULL, BF_READ, &file) == BF_ERROR_ARGUMENT);
    EXPECT(bf_open(context, argv[1], 77, &file) == BF_ERROR_ARGUMENT);
    EXPECT(bf_open(context, argv[1], BF_READ, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_open(context, "/", BF_READ, &file) == BF_ERROR_NOT_A_FILE);
    EXPECT(bf_open(context, "stripe:5:a", BF_READ, &file) == BF_ERROR_STRIPE);
    EXPECT(bf_open(context, argv[1], BF_READ, &file) == BF_OK);

    EXPECT(bf_size(NULL, &size) == BF_ERROR_ARGUMENT && bf_size(file, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_size(file, &size) == BF_OK && size == 10000);
    EXPECT(bf_advise(file, 9) == BF_ERROR_ARGUMENT && bf_advise(NULL, BF_RANDOM) == BF_ERROR_ARGUMENT);

    EXPECT(bf_alloc(context, 1000, NULL) == BF_ERROR_ARGUMENT && bf_alloc(NULL, 1, &memory) == BF_ERROR_ARGUMENT);
    EXPECT(bf_alloc(context, 16384, &memory) == BF_OK && memory != 0);
    EXPECT(bf_free(context, memory + 1) == BF_ERROR_ARGUMENT && bf_free(context, 0) == BF_OK);
    EXPECT(bf_copy_to_host(context, NULL, memory, 1) == BF_ERROR_ARGUMENT);
    EXPECT(bf_copy_from_host(context, memory, NULL, 1) == BF_ERROR_ARGUMENT);
    EXPECT(bf_copy_to_host(context, host, 0, 1) == BF_ERROR_ARGUMENT);
    EXPECT(bf_copy_to_host(context, NULL, 0, 0) == BF_OK);

    EXPECT(bf_read(NULL, memory, 1, 0) == BF_ERROR_ARGUMENT);
    EXPECT(bf_read(file, 0, 1, 0) == BF_ERROR_ARGUMENT);
    EXPECT(bf_read(file, UINT64_MAX, 100, 0) == BF_ERROR_ARGUMENT);
    EXPECT(bf_read(file, memory, 16384, 0) == 10000);
    EXPECT(bf_read(file, memory, 16384, 9990) == 10);
    EXPECT(bf_read(file, memory, 16384, 10000) == 0);
    EXPECT(bf_read(file, memory, 16384, UINT64_MAX) == 0);
    EXPECT(bf_write(file, memory, 1, 0, 0) == BF_ERROR_READ_ONLY);
    EXPECT(bf_write(file, memory, 1, 0, 99) == BF_ERROR_ARGUMENT);
    EXPECT(bf_sync(file) == BF_ERROR_READ_ONLY && bf_sync(NULL) == BF_ERROR_ARGUMENT);

    bf_extent extents[2] = {{.offset = 0, .length = 100, .place = 0}, {.offset = 5, .length = 100, .place = 50}};
    EXPECT(bf_read_batch(file, NULL, 1, memory, 100) == BF_ERROR_ARGUMENT);
    EXPECT(bf_read_batch(file, extents, 2, memory, 16384) < 0 && strlen(bf_last_error()) > 10);
    EXPECT(bf_read_batch(file, extents, 1, memory, 99) < 0);
    EXPECT(bf_read_batch(file, extents, 0, memory, 0) == 0);
    EXPECT(bf_read_batch(file, extents, 1, memory, 100) == 100);

    EXPECT(bf_explain(file, 100, 0, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_explain(file, 100, 99999, &json) == BF_ERROR_RANGE && json == NULL);
    bf_string_free(NULL);
    EXPECT(bf_stripe_create("x.toml", 4096, 1, NULL, 0) == BF_ERROR_ARGUMENT);
    EXPECT(bf_calibrate(context, NULL, NULL) == BF_ERROR_ARGUMENT);

    EXPECT(bf_submit_read(file, memory, 100, 0, NULL) == BF_ERROR_ARGUMENT);
    EXPECT(bf_submit_write(file, memory, 100, 0, 99, &request) == BF_ERROR_ARGUMENT && request == NULL);
    EXPECT(bf_submit_read(file, memory, 100, 20000, &request) == BF_OK);
    EXPECT(bf_request_is_done(request) == 1 && bf_request_wait(request) == 0);
    EXPECT(bf_request_wait(request) == BF_ERROR_TAKEN && bf_request_is_done(request) == 1);
    EXPECT(bf_request_cancel(request) == BF_OK);
    bf_request_free(request);
    EXPECT(bf_request_wait(NULL) == BF_ERROR_ARGUMENT && bf_request_is_done(NULL) == BF_ERROR_ARGUMENT);
    bf_request_free(NULL);
    EXPECT(bf_submit_write(file, memory, 100, 0, 0, &request) == BF_OK);
    EXPECT(bf_request_wait(request) == BF_ERROR_READ_ONLY);
    bf_request_free(request);
    EXPECT(bf_submit_batch(file, extents, 1, memory, 100, &request) == BF_OK);
    EXPECT(bf_request_wait(request) == 100);
    bf_request_free(request);
    for (int i = 0; i < 50; i++) {
        EXPECT(bf_submit_read(file, memory, 10000, 0, &request) == BF_OK);
        bf_request_free(request); /* cancels and waits */
    }

    shared = file;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        EXPECT(pthread_create(&threads[i], NULL, read_often, NULL) == 0);
    }
    for (int i = 0; i < 8; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }

    /* A child has none of the threads: everything is refused at once, and freeing waits for nobody. */
    EXPECT(bf_submit_read(file, memory, 10000, 0, &request) == BF_OK);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int refused = bf_read(file, memory, 100, 0) == BF_ERROR_FORKED && strstr(bf_last_error(), "forked") != NULL;
        refused = refused && bf_request_is_done(request) == 1 && bf_request_wait(request) == BF_ERROR_FORKED;
        bf_request_free(request);
        bf_close(file);
        bf_context_close(context);
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(bf_request_wait(request) == 10000);
    bf_request_free(request);

    /* The context first: the file and the request keep what they need. */
    EXPECT(bf_submit_read(file, (bf_ptr)(uintptr_t)host, sizeof host, 0, &request) == BF_OK);
    EXPECT(bf_free(context, memory) == BF_OK);
    bf_context_close(context);
    bf_close(file);
    EXPECT(bf_request_wait(request) == (int64_t)sizeof host);
    bf_request_free(request);
    bf_context_close(NULL);
    bf_close(NULL);
    mappings(argv[1]);
    paged();
    printf("all refused\n");
    return 0;
}
