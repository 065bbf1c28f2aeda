/* Sorts an array of which a quarter may be in memory; the rest is in the memory of a device:
 *
 *   cc paged.c -lbifolio -o paged && ./paged MIB [DEVICE]
 */
#include <bifolio.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(bf_status status)
{
    if (status != BF_OK) {
        fprintf(stderr, "paged: %s\n", bf_last_error());
        exit(1);
    }
}

/* The next number of a sequence without a pattern (SplitMix64). */
static uint64_t next(uint64_t *state)
{
    uint64_t word = *state += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

/* Quicksort goes through its parts from both ends, which suits memory that comes in blocks; qsort may take as much
 * memory again. */
static void sort(uint64_t *words, size_t count)
{
    while (count > 1) {
        uint64_t middle = words[(count - 1) / 2];
        size_t low = 0, high = count - 1;
        for (;; low++, high--) {
            while (words[low] < middle) {
                low++;
            }
            while (words[high] > middle) {
                high--;
            }
            if (low >= high) {
                break;
            }
            uint64_t word = words[low];
            words[low] = words[high];
            words[high] = word;
        }
        /* The smaller part first, so that few calls wait for each other. */
        size_t left = high + 1;
        if (left < count - left) {
            sort(words, left);
            words += left;
            count -= left;
        } else {
            sort(words + left, count - left);
            count = left;
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t length = argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : 0;
    if (length == 0) {
        fprintf(stderr, "usage: paged MIB [DEVICE]\n");
        return 2;
    }
    void *memory;
    check(bf_paged_alloc(argc > 2 ? argv[2] : NULL, length, length / 4, 0, &memory));
    uint64_t *words = memory, state = 19, sum = 0, previous = 0;
    size_t count = length / sizeof *words;

    for (size_t i = 0; i < count; i++) {
        words[i] = next(&state);
        sum += words[i];
    }
    sort(words, count);
    for (size_t i = 0; i < count; i++) {
        if (words[i] < previous) {
            fprintf(stderr, "paged: word %zu is less than the one before it\n", i);
            return 1;
        }
        previous = words[i];
        sum -= words[i];
    }
    if (sum != 0) {
        fprintf(stderr, "paged: other words came back than were stored\n");
        return 1;
    }

    bf_paged_statistics statistics = {.size = sizeof statistics};
    check(bf_paged_stats(memory, &statistics));
    printf("%zu words sorted, %" PRIu64 " KiB in memory: %" PRIu64 " blocks left, %" PRIu64 " came back\n", count,
           statistics.resident_bytes >> 10, statistics.stored + statistics.dropped, statistics.fetched);
    check(bf_paged_free(memory));
    return 0;
}
