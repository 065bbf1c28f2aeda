// The per-thread functions of merge.h and differ.h, run over all threads of a group on exact-size
// heap buffers, against a byte loop. Built with AddressSanitizer and UBSan. Argument: the seed.
#include "merge.h"

#include "harness.hpp"

static void check_words(Draw &draw)
{
    for (int i = 0; i < 20000; i++) {
        u64 x = 0, mask = 0, tops = 0;
        u32 bits = 0, count = 0;
        for (u32 b = 0; b < 8; b++) {
            // Bytes at the edges of the arithmetic are frequent: 0, 1, 0x7f, 0x80, 0xff.
            const u8 edges[] = {0, 0, 1, 0x7f, 0x80, 0xff};
            u64 byte = draw.below(4) ? edges[draw.below(6)] : draw.below(256);
            x |= byte << (8 * b);
            if (byte != 0) {
                mask |= (u64)0xff << (8 * b);
                tops |= (u64)0x80 << (8 * b);
                bits |= 1u << b;
                count++;
            }
        }
        if (differ_mask(x) != mask || differ_tops(x) != tops || differ_bits(tops) != bits ||
            differ_count(tops) != count) {
            fail("differ: wrong about %#llx", x);
        }
    }
}

// `own` and `others`: how many of 256 bytes either side changes; `same`: how many of the others'
// changes are this side's own ones, which is no race.
static void check(u64 len, u64 own, u64 others, u64 same, Draw &draw)
{
    ExactBuffer current(len), twin(len), incoming(len), merged(len);
    draw.fill(twin.data(), len);
    u32 expected = 0, found = 0;
    for (u64 i = 0; i < len; i++) {
        u8 old = twin.data()[i];
        u8 mine = draw.below(256) < own ? (u8)(old + 7) : old;
        u8 theirs = draw.below(256) >= others ? old : (draw.below(256) < same ? (u8)(old + 7) : (u8)(old ^ 0x80));
        expected |= theirs != old ? 1u : 0u;
        expected |= mine != old ? 2u : 0u;
        expected |= theirs != old && mine != old && mine != theirs ? 4u : 0u;
        current.data()[i] = mine;
        incoming.data()[i] = theirs;
        merged.data()[i] = mine != old ? mine : theirs;
    }
    for (u32 thread = 0; thread < MERGE_GROUP_SIZE; thread++) {
        found |= merge_thread(current.data(), twin.data(), incoming.data(), len, thread);
    }
    if (found != expected) {
        fail("merge: %llu bytes: the flags are %u instead of %u", len, found, expected);
    }
    for (u64 i = 0; i < len; i++) {
        if (current.data()[i] != merged.data()[i] || twin.data()[i] != incoming.data()[i]) {
            fail("merge: %llu bytes: byte %llu is %#x instead of %#x, its twin %#x instead of %#x", len, i,
                 current.data()[i], merged.data()[i], twin.data()[i], incoming.data()[i]);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    check_words(draw);
    const u64 sizes[] = {0, 1, 15, 16, 17, 31, 4095, 4096, 4097, 8191, 8192, 8193, 12288, 12304, 65536, 65553};
    const u64 changes[][3] = {{0, 0, 0},   {0, 1, 0},   {1, 0, 0},       {40, 40, 64},
                              {0, 256, 0}, {256, 0, 0}, {256, 256, 256}, {256, 256, 255}};
    for (u64 len : sizes) {
        for (const u64 *change : changes) {
            check(len, change[0], change[1], change[2], draw);
        }
    }
    for (int i = 0; i < 100; i++) {
        check(draw.below(20000), draw.below(257), draw.below(257), draw.below(2) ? 256 : draw.below(257), draw);
    }
    return 0;
}
