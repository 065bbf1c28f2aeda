// The per-thread functions of raid6.h on exact-size heap buffers, against multiplication bit by bit.
// Built with AddressSanitizer and UBSan. Argument: the seed.
#include "raid6.h"

#include "harness.hpp"

#include <algorithm>
#include <memory>
#include <vector>

static u8 times(u8 a, u8 b)
{
    u8 product = 0;
    for (; b != 0; b >>= 1) {
        product ^= (b & 1) ? a : 0;
        a = (u8)(a << 1 ^ ((a & 0x80) ? 0x1d : 0));
    }
    return product;
}

static u8 power(u32 exponent)
{
    u8 result = 1;
    while (exponent-- > 0) {
        result = times(result, 2);
    }
    return result;
}

static u8 inverse(u8 a)
{
    u8 b = 1;
    while (times(a, b) != 1) {
        b++;
    }
    return b;
}

struct Stripe {
    u32 data;
    u64 len;
    std::vector<std::unique_ptr<ExactBuffer>> members;
    std::vector<u64> places;

    Stripe(u32 data, u64 len, Draw &draw) : data(data), len(len)
    {
        for (u32 i = 0; i < data + 2; i++) {
            members.push_back(std::make_unique<ExactBuffer>(len));
            draw.fill(members[i]->data(), len);
            places.push_back((u64)members[i]->data());
        }
    }
    u8 &at(u32 member, u64 byte) { return members[member]->data()[byte]; }
};

static void check(u32 data, u64 len, Draw &draw)
{
    Stripe stripe(data, len, draw);
    for (u64 at = 0; at < len; at += 16) {
        raid6_generate_lane(nullptr, stripe.places.data(), at, data);
    }
    for (u64 i = 0; i < len; i++) {
        u8 p = 0, q = 0;
        for (u32 member = 0; member < data; member++) {
            p ^= stripe.at(member, i);
            q ^= times(power(member), stripe.at(member, i));
        }
        if (stripe.at(data, i) != p || stripe.at(data + 1, i) != q) {
            fail("generate: %u members: byte %llu is wrong", data, i);
        }
    }
    for (u32 a = 0; a < data + 2; a++) {
        for (u32 b = a + 1; b <= data + 2; b++) {
            u32 other = b == data + 2 ? RAID6_NONE : b;
            u8 of_p = 0, of_q = 0;
            if (b < data) {
                u8 apart = power(b - a);
                of_p = times(apart, inverse(apart ^ 1));
                of_q = inverse(times(power(a), apart ^ 1));
            } else if (a < data && b == data) {
                of_q = inverse(power(a));
            } else if (a < data && b == data + 1) {
                of_q = power(a);
            }
            std::vector<u8> lost[2];
            for (u32 which : {0u, 1u}) {
                u32 member = which == 0 ? a : other;
                if (member != RAID6_NONE) {
                    lost[which].assign(&stripe.at(member, 0), &stripe.at(member, 0) + len);
                    draw.fill(&stripe.at(member, 0), len);
                }
            }
            for (u64 at = 0; at < len; at += 16) {
                raid6_recover_lane(nullptr, stripe.places.data(), at, data, a, other, of_p, of_q);
            }
            if (!std::equal(lost[0].begin(), lost[0].end(), &stripe.at(a, 0)) ||
                (other != RAID6_NONE && !std::equal(lost[1].begin(), lost[1].end(), &stripe.at(b, 0)))) {
                fail("recover: %u members without %u and %u", data, a, other);
            }
        }
    }
    for (u32 member = 0; member <= data + 2; member++) {
        u64 byte = draw.below(len);
        u8 error = member == data + 2 ? 0 : (u8)(1 + draw.below(255));
        u32 lowest, highest;
        if (error != 0) {
            stripe.at(member, byte) ^= error;
        }
        raid6_scrub_lane(nullptr, stripe.places.data(), byte / 16 * 16, data, &lowest, &highest);
        u32 expected = error != 0 ? member : RAID6_CLEAN;
        if (lowest != expected || highest != (error != 0 ? member : 0)) {
            fail("scrub: %u members: %u to %u instead of %u", data, lowest, highest, expected);
        }
        if (error != 0) {
            stripe.at(member, byte) ^= error;
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (u32 data : {1, 2, 3, 4, 5, 8, 9, 21}) {
        check(data, 48, draw);
    }
    check(255, 16, draw);
    return 0;
}
