/* RAID-6, per-thread part: P and Q of a stripe, the members that are lost, the member that is wrong.
 *
 * P is the sum of the data members, Q the sum of 2^i times member i, in GF(2^8) modulo
 * x^8 + x^4 + x^3 + x^2 + 1, as in Linux md. A table holds the places of each stripe's members:
 * data 0 to data - 1, P, Q.
 *
 * One group takes a piece of 4 KiB of all members of a stripe: thread t the 16 bytes at 16 * t, so
 * that neighbours touch neighbouring bytes. Four members are loaded before any is used.
 */
#ifndef BIFOLIO_RAID6_H
#define BIFOLIO_RAID6_H

#include "kdef.h"

#define RAID6_GROUP_SIZE 256u
#define RAID6_PIECE_BYTES 4096u
#define RAID6_BATCH 4u
#define RAID6_NONE 0xffffffffu
/* What a scrub says of a piece, besides a member. */
#define RAID6_CLEAN 0xffffffffu
#define RAID6_UNKNOWN 0xfffffffeu

typedef struct {
    u64 members_at;  /* added to every place */
    u64 chunk_bytes; /* of one member in a stripe; a multiple of 16 */
    u32 data;        /* number of data members, at most 255 */
    u32 pieces;      /* of RAID6_PIECE_BYTES in a chunk, the last one perhaps shorter */
} Raid6Params;

/* What a stripe has lost: `a` below `b`, either of them RAID6_NONE; data + 0 is P, data + 1 is Q. */
typedef struct {
    u32 a;
    u32 b;
    u32 of_p; /* factor of P's syndrome */
    u32 of_q; /* factor of Q's syndrome, or of the member's content in Q */
} Raid6Loss;

STATIC_ASSERT(sizeof(Raid6Params) == 24, raid6_params_match_rust);
STATIC_ASSERT(sizeof(Raid6Loss) == 16, raid6_loss_matches_rust);

/* 16 bytes of a member. */
typedef struct {
    u32 w[4];
} Raid6Lane;

/* Both sums over some members. */
typedef struct {
    Raid6Lane p;
    Raid6Lane q;
} Raid6Sums;

FN Raid6Lane raid6_load(GLOBAL const u8 *at)
{
    Word16 word = load16(at);
    Raid6Lane lane;
    lane.w[0] = (u32)word.lo;
    lane.w[1] = (u32)(word.lo >> 32);
    lane.w[2] = (u32)word.hi;
    lane.w[3] = (u32)(word.hi >> 32);
    return lane;
}

FN void raid6_store(GLOBAL u8 *at, Raid6Lane lane)
{
    Word16 word;
    word.lo = lane.w[0] | (u64)lane.w[1] << 32;
    word.hi = lane.w[2] | (u64)lane.w[3] << 32;
    store16(at, word);
}

FN Raid6Lane raid6_zero(void)
{
    Raid6Lane lane;
    lane.w[0] = lane.w[1] = lane.w[2] = lane.w[3] = 0;
    return lane;
}

FN Raid6Lane raid6_add(Raid6Lane a, Raid6Lane b)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        a.w[i] ^= b.w[i];
    }
    return a;
}

/* Four bytes times 2. */
FN u32 raid6_double(u32 word)
{
    u32 over = word >> 7 & 0x01010101u;
    return (word << 1 & 0xfefefefeu) ^ over * 0x1du;
}

/* Every byte times one factor, which is the same for the whole group. */
FN Raid6Lane raid6_times(Raid6Lane lane, u32 factor)
{
    Raid6Lane product = raid6_zero();
    u32 i;
    for (; factor != 0; factor >>= 1) {
        UNROLL
        for (i = 0; i < 4; i++) {
            product.w[i] ^= (factor & 1) != 0 ? lane.w[i] : 0;
            lane.w[i] = raid6_double(lane.w[i]);
        }
    }
    return product;
}

/* The sums over all data members but `a` and `b`, by Horner's rule from the last one. Members
 * beyond the last are nothing, so that every batch is whole. */
FN Raid6Sums raid6_sums(GLOBAL const u8 *base, GLOBAL const u64 *places, u64 at, u32 data, u32 a, u32 b)
{
    Raid6Sums sums;
    u32 first;
    sums.p = raid6_zero();
    sums.q = raid6_zero();
    for (first = (data + RAID6_BATCH - 1) / RAID6_BATCH * RAID6_BATCH; first > 0; first -= RAID6_BATCH) {
        Raid6Lane lanes[RAID6_BATCH];
        u32 i;
        u32 j;
        UNROLL
        for (j = 0; j < RAID6_BATCH; j++) {
            u32 member = first - 1 - j;
            lanes[j] = raid6_zero();
            if (member < data && member != a && member != b) {
                lanes[j] = raid6_load(base + (places[member] + at));
            }
        }
        UNROLL
        for (j = 0; j < RAID6_BATCH; j++) {
            UNROLL
            for (i = 0; i < 4; i++) {
                sums.p.w[i] ^= lanes[j].w[i];
                sums.q.w[i] = raid6_double(sums.q.w[i]) ^ lanes[j].w[i];
            }
        }
    }
    return sums;
}

/* Writes P and Q of the 16 bytes at `at` of a stripe's chunks. */
FN void raid6_generate_lane(GLOBAL u8 *base, GLOBAL const u64 *places, u64 at, u32 data)
{
    Raid6Sums sums = raid6_sums(base, places, at, data, RAID6_NONE, RAID6_NONE);
    raid6_store(base + (places[data] + at), sums.p);
    raid6_store(base + (places[data + 1] + at), sums.q);
}

/* Writes the 16 bytes at `at` of what a stripe has lost. */
FN void raid6_recover_lane(GLOBAL u8 *base, GLOBAL const u64 *places, u64 at, u32 data, u32 a, u32 b, u32 of_p,
                           u32 of_q)
{
    Raid6Sums sums;
    Raid6Lane first;
    Raid6Lane second;
    if (a == RAID6_NONE) {
        return;
    }
    sums = raid6_sums(base, places, at, data, a, b);
    if (a == data) {
        first = sums.p;
        second = sums.q;
    } else if (a == data + 1) {
        first = sums.q;
        second = sums.q;
    } else if (b == data) {
        first = raid6_times(raid6_add(sums.q, raid6_load(base + (places[data + 1] + at))), of_q);
        second = raid6_add(sums.p, first);
    } else {
        Raid6Lane of_lost = raid6_add(sums.p, raid6_load(base + (places[data] + at)));
        first = of_lost;
        second = of_lost;
        if (b == data + 1) {
            second = raid6_add(sums.q, raid6_times(first, of_q));
        } else if (b != RAID6_NONE) {
            Raid6Lane weighted = raid6_add(sums.q, raid6_load(base + (places[data + 1] + at)));
            first = raid6_add(raid6_times(of_lost, of_p), raid6_times(weighted, of_q));
            second = raid6_add(of_lost, first);
        }
    }
    raid6_store(base + (places[a] + at), first);
    if (b != RAID6_NONE) {
        raid6_store(base + (places[b] + at), second);
    }
}

/* The member whose error alone explains one byte's syndromes: error e in data member z makes them
 * e and 2^z e. */
FN u32 raid6_suspect(u32 p, u32 q, u32 data)
{
    u32 member;
    if (p == 0 || q == 0) {
        return p != 0 ? data : q != 0 ? data + 1 : RAID6_CLEAN;
    }
    for (member = 0; member < data; member++) {
        if (p == q) {
            return member;
        }
        p = raid6_double(p);
    }
    return RAID6_UNKNOWN;
}

/* The lowest and highest suspects among the 16 bytes at `at`; as `lowest` the clean are last. */
FN void raid6_scrub_lane(GLOBAL const u8 *base, GLOBAL const u64 *places, u64 at, u32 data, PRIVATE u32 *lowest,
                         PRIVATE u32 *highest)
{
    Raid6Sums sums = raid6_sums(base, places, at, data, RAID6_NONE, RAID6_NONE);
    u32 i;
    u32 shift;
    sums.p = raid6_add(sums.p, raid6_load(base + (places[data] + at)));
    sums.q = raid6_add(sums.q, raid6_load(base + (places[data + 1] + at)));
    *lowest = RAID6_CLEAN;
    *highest = 0;
    UNROLL
    for (i = 0; i < 4; i++) {
        if ((sums.p.w[i] | sums.q.w[i]) != 0) {
            for (shift = 0; shift < 32; shift += 8) {
                u32 suspect = raid6_suspect(sums.p.w[i] >> shift & 0xff, sums.q.w[i] >> shift & 0xff, data);
                if (suspect != RAID6_CLEAN) {
                    *lowest = suspect < *lowest ? suspect : *lowest;
                    *highest = suspect > *highest ? suspect : *highest;
                }
            }
        }
    }
}

#endif
