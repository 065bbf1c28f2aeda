// The per-thread functions of page_diff.h, run over all threads of all groups on exact-size heap
// buffers, against a byte loop. Built with AddressSanitizer and UBSan. Argument: the seed.
#include "page_diff.h"

#include "harness.hpp"

static void check(u64 bytes, int changes, Draw &draw)
{
    ExactBuffer a(bytes), b(bytes);
    draw.fill(a.data(), bytes);
    memcpy(b.data(), a.data(), bytes);
    for (int i = 0; bytes > 0 && i < changes; i++) {
        b.data()[draw.below(bytes)] ^= (u8)(1 + draw.below(255));
    }
    u64 pages = (bytes + PAGE_DIFF_PAGE_BYTES - 1) / PAGE_DIFF_PAGE_BYTES;
    u64 words = (pages + 31) / 32;
    for (u64 word = 0; word < words; word++) {
        u32 expected = 0;
        for (u64 at = word * 32 * 4096; at < bytes && at < (word + 1) * 32 * 4096; at++) {
            if (a.data()[at] != b.data()[at]) {
                expected |= 1u << (at / 4096 % 32);
            }
        }
        u32 found = 0;
        for (u32 thread = 0; thread < PAGE_DIFF_GROUP_SIZE; thread++) {
            found |= page_diff_thread(a.data(), b.data(), bytes, (u32)word, thread);
        }
        if (found != expected) {
            fail("page_diff: %llu bytes: word %llu is %#x instead of %#x", bytes, word, found, expected);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    const u64 group = 32 * 4096;
    const u64 sizes[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, group - 4096, group - 1, group, group + 1, group + 4096,
                         3 * group + 5 * 4096 + 7};
    for (u64 bytes : sizes) {
        for (int changes : {0, 1, 3, 200}) {
            check(bytes, changes, draw);
        }
    }
    for (int i = 0; i < 50; i++) {
        check(draw.below(2 * group), (int)draw.below(10), draw);
    }
    return 0;
}
