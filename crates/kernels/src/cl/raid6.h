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

/* Where thread `thread` works in the chunks of a stripe. */
FN u64 raid6_place(u32 piece, u32 thread) { return (u64)piece * RAID6_PIECE_BYTES + thread * 16; }

/* The 16 bytes that a thread takes of a member are four words. */
FN void raid6_load(PRIVATE u32 *lane, GLOBAL const u8 *at)
{
    Word16 word = load16(at);
    lane[0] = (u32)word.lo;
    lane[1] = (u32)(word.lo >> 32);
    lane[2] = (u32)word.hi;
    lane[3] = (u32)(word.hi >> 32);
}

FN void raid6_store(GLOBAL u8 *at, PRIVATE const u32 *lane)
{
    Word16 word;
    word.lo = lane[0] | (u64)lane[1] << 32;
    word.hi = lane[2] | (u64)lane[3] << 32;
    store16(at, word);
}

FN void raid6_add(PRIVATE u32 *lane, PRIVATE const u32 *other)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        lane[i] ^= other[i];
    }
}

FN void raid6_copy(PRIVATE u32 *lane, PRIVATE const u32 *other)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        lane[i] = other[i];
    }
}

FN void raid6_add_member(PRIVATE u32 *lane, GLOBAL const u8 *at)
{
    u32 member[4];
    raid6_load(member, at);
    raid6_add(lane, member);
}

/* Four bytes times 2. */
FN u32 raid6_double(u32 word)
{
    u32 over = word >> 7 & 0x01010101u;
    return (word << 1 & 0xfefefefeu) ^ over * 0x1du;
}

/* Every byte times one factor, which is the same for the whole group. */
FN void raid6_scale(PRIVATE u32 *lane, u32 factor)
{
    u32 product[4] = {0, 0, 0, 0};
    u32 i;
    for (; factor != 0; factor >>= 1) {
        UNROLL
        for (i = 0; i < 4; i++) {
            product[i] ^= (factor & 1) != 0 ? lane[i] : 0;
            lane[i] = raid6_double(lane[i]);
        }
    }
    raid6_copy(lane, product);
}

/* The sums over all data members but `a` and `b`, by Horner's rule from the last one. Members
 * beyond the last are nothing, so that every batch is whole. */
FN void raid6_sums(PRIVATE u32 *p, PRIVATE u32 *q, GLOBAL const u8 *base, GLOBAL const u64 *places, u64 at, u32 data,
                   u32 a, u32 b)
{
    u32 first;
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        p[i] = 0;
        q[i] = 0;
    }
    for (first = (data + RAID6_BATCH - 1) / RAID6_BATCH * RAID6_BATCH; first > 0; first -= RAID6_BATCH) {
        u32 lanes[RAID6_BATCH * 4];
        u32 j;
        UNROLL
        for (j = 0; j < RAID6_BATCH; j++) {
            u32 member = first - 1 - j;
            UNROLL
            for (i = 0; i < 4; i++) {
                lanes[j * 4 + i] = 0;
            }
            if (member < data && member != a && member != b) {
                raid6_load(lanes + j * 4, base + (places[member] + at));
            }
        }
        UNROLL
        for (j = 0; j < RAID6_BATCH; j++) {
            UNROLL
            for (i = 0; i < 4; i++) {
                p[i] ^= lanes[j * 4 + i];
                q[i] = raid6_double(q[i]) ^ lanes[j * 4 + i];
            }
        }
    }
}

/* Writes P and Q of the 16 bytes at `at` of a stripe's chunks. */
FN void raid6_generate_lane(GLOBAL u8 *base, GLOBAL const u64 *places, u64 at, u32 data)
{
    u32 p[4];
    u32 q[4];
    raid6_sums(p, q, base, places, at, data, RAID6_NONE, RAID6_NONE);
    raid6_store(base + (places[data] + at), p);
    raid6_store(base + (places[data + 1] + at), q);
}

/* Writes the 16 bytes at `at` of what a stripe has lost. */
FN void raid6_recover_lane(GLOBAL u8 *base, GLOBAL const u64 *places, u64 at, u32 data, u32 a, u32 b, u32 of_p,
                           u32 of_q)
{
    u32 p[4];
    u32 q[4];
    u32 lost[4];
    if (a == RAID6_NONE) {
        return;
    }
    raid6_sums(p, q, base, places, at, data, a, b);
    if (a < data) {
        /* The syndromes: what `a`, and perhaps another data member, contribute. */
        if (b != data) {
            raid6_add_member(p, base + (places[data] + at));
        }
        if (b <= data) {
            raid6_add_member(q, base + (places[data + 1] + at));
        }
    }
    if (a >= data) {
        raid6_store(base + (places[a] + at), a == data ? p : q);
        if (b != RAID6_NONE) {
            raid6_store(base + (places[b] + at), q);
        }
        return;
    }
    if (b == RAID6_NONE) {
        raid6_store(base + (places[a] + at), p);
        return;
    }
    if (b == data + 1) {
        raid6_store(base + (places[a] + at), p);
        raid6_scale(p, of_q);
        raid6_add(q, p);
        raid6_store(base + (places[b] + at), q);
        return;
    }
    /* With P lost, `of_p` is 0 and `p` the sum of the others. */
    raid6_copy(lost, p);
    raid6_scale(lost, of_p);
    raid6_scale(q, of_q);
    raid6_add(lost, q);
    raid6_add(p, lost);
    raid6_store(base + (places[a] + at), lost);
    raid6_store(base + (places[b] + at), p);
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
    u32 p[4];
    u32 q[4];
    u32 i;
    u32 shift;
    raid6_sums(p, q, base, places, at, data, RAID6_NONE, RAID6_NONE);
    raid6_add_member(p, base + (places[data] + at));
    raid6_add_member(q, base + (places[data + 1] + at));
    *lowest = RAID6_CLEAN;
    *highest = 0;
    UNROLL
    for (i = 0; i < 4; i++) {
        if ((p[i] | q[i]) != 0) {
            for (shift = 0; shift < 32; shift += 8) {
                u32 suspect = raid6_suspect(p[i] >> shift & 0xff, q[i] >> shift & 0xff, data);
                if (suspect != RAID6_CLEAN) {
                    *lowest = suspect < *lowest ? suspect : *lowest;
                    *highest = suspect > *highest ? suspect : *highest;
                }
            }
        }
    }
}

#endif
