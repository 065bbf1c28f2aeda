// The per-thread functions of scatter.h, run over all threads of several grids on exact-size heap
// buffers, against memcpy. Built with AddressSanitizer and UBSan. Argument: the seed.
#include "scatter.h"

#include "harness.hpp"

#include <vector>

static void check(u64 count, u64 longest, u32 groups, Draw &draw)
{
    u64 staging_at = draw.below(40), destination_at = draw.below(40);
    std::vector<ScatterExtent> extents;
    u64 staging_len = 0, destination_len = 0;
    for (u64 i = 0; i < count; i++) {
        u64 len = draw.below(8) == 0 ? 0 : draw.below(longest + 1);
        u64 src = staging_len + (draw.below(2) ? draw.below(33) : 0);
        u64 dst = destination_len + (draw.below(2) ? draw.below(33) : 0);
        extents.push_back({src, dst, len});
        staging_len = src + len;
        destination_len = dst + len;
    }
    // The buffers end exactly where the last extent does, so that a wide load past it is reported.
    ExactBuffer staging(staging_at + staging_len), destination(destination_at + destination_len);
    draw.fill(staging.data(), staging.size());
    draw.fill(destination.data(), destination.size());
    std::vector<u8> expected(destination.data(), destination.data() + destination.size());
    for (const ScatterExtent &e : extents) {
        if (e.len > 0) {
            memcpy(expected.data() + destination_at + e.dst, staging.data() + staging_at + e.src, e.len);
        }
    }
    for (u32 group = 0; group < groups; group++) {
        for (u32 thread = 0; thread < SCATTER_GROUP_SIZE; thread++) {
            scatter_thread(staging.data(), extents.data(), destination.data(), extents.size(), staging_at,
                           destination_at, group, groups, thread);
        }
    }
    for (u64 i = 0; i < expected.size(); i++) {
        if (destination.data()[i] != expected[i]) {
            fail("scatter: %llu extents up to %llu bytes on %u groups: byte %llu is %#x instead of %#x", count, longest,
                 groups, i, destination.data()[i], expected[i]);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (u64 longest : {0, 1, 7, 8, 15, 16, 31, 40, 100, 512, 4095, 4096, 5000, 70000}) {
        for (u32 groups : {1, 2, 5}) {
            for (u64 count : {1, 2, 8, 9, 17}) {
                check(count, longest, groups, draw);
            }
        }
    }
    return 0;
}
