// The per-thread functions of byte_mask.h, run over all threads of a group on exact-size heap
// buffers, against a byte loop. Built with AddressSanitizer and UBSan. Argument: the seed.
#include "byte_mask.h"

#include "harness.hpp"

// `changes`: how many of 256 bytes differ.
static void check(u64 len, u64 changes, Draw &draw)
{
    const u64 mask_len = (len + 7) / 8;
    ExactBuffer current(len), twin(len), mask(mask_len), expected(mask_len);
    draw.fill(twin.data(), len);
    for (u64 i = 0; i < mask_len; i++) {
        expected.data()[i] = 0;
    }
    u32 differing = 0, found = 0;
    for (u64 i = 0; i < len; i++) {
        bool differs = draw.below(256) < changes;
        current.data()[i] = differs ? (u8)(twin.data()[i] ^ (1u << draw.below(8))) : twin.data()[i];
        expected.data()[i / 8] = (u8)(expected.data()[i / 8] | ((differs ? 1u : 0u) << (i % 8)));
        differing += differs ? 1u : 0u;
    }
    // Every bit is wrong: a byte that no thread writes is found.
    for (u64 i = 0; i < mask_len; i++) {
        mask.data()[i] = (u8)~expected.data()[i];
    }
    for (u32 thread = 0; thread < BYTE_MASK_GROUP_SIZE; thread++) {
        found += byte_mask_thread(current.data(), twin.data(), mask.data(), len, thread);
    }
    if (found != differing) {
        fail("byte_mask: %llu bytes: %u differ instead of %u", len, found, differing);
    }
    for (u64 i = 0; i < mask_len; i++) {
        if (mask.data()[i] != expected.data()[i]) {
            fail("byte_mask: %llu bytes: byte %llu of the mask is %#x instead of %#x", len, i, mask.data()[i],
                 expected.data()[i]);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    const u64 sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 4095, 4096, 4097, 8191, 8192, 8193, 12288, 12304, 65536, 65549};
    for (u64 len : sizes) {
        for (u64 changes : {0, 1, 100, 256}) {
            check(len, changes, draw);
        }
    }
    for (int i = 0; i < 100; i++) {
        check(draw.below(20000), draw.below(257), draw);
    }
    return 0;
}
