/* Byte mask, per-thread part: which bytes of a page differ from its twin, one bit for each.
 *
 * One group makes the mask of one page. In each step it takes 4 KiB: thread t the 16 bytes at
 * 16 * t, which are two bytes of the mask, so that neighbours read and write neighbouring bytes.
 * Two steps are loaded before either is stored, as in the merge.
 *
 * Places are multiples of 16, lengths are anything. A page of `len` bytes has a mask of
 * (len + 7) / 8 bytes, all of which are written; nothing else is.
 */
#ifndef BIFOLIO_BYTE_MASK_H
#define BIFOLIO_BYTE_MASK_H

#include "differ.h"

#define BYTE_MASK_GROUP_SIZE 256u
#define BYTE_MASK_LANE_BYTES 16u
#define BYTE_MASK_STEP_BYTES (BYTE_MASK_GROUP_SIZE * BYTE_MASK_LANE_BYTES)
/* Counters of a group, one for each thread that adds at a time, so that they do not queue. */
#define BYTE_MASK_COUNTERS 32u

typedef struct {
    u64 current; /* offsets of the page in both operands, and of its mask */
    u64 twin;
    u64 mask;
    u64 len;     /* bytes of the page */
} ByteMaskEntry;

typedef struct {
    u64 current_at; /* added to the offsets in every entry */
    u64 twin_at;
    u64 mask_at;
} ByteMaskParams;

STATIC_ASSERT(sizeof(ByteMaskEntry) == 32, byte_mask_entry_matches_rust);
STATIC_ASSERT(sizeof(ByteMaskParams) == 24, byte_mask_params_match_rust);

/* Writes the mask of 16 bytes and returns how many differ. */
FN u32 byte_mask_lane(GLOBAL u8 *mask, Word16 mine, Word16 old)
{
    u64 lo = differ_tops(mine.lo ^ old.lo);
    u64 hi = differ_tops(mine.hi ^ old.hi);
    store2(mask, (u16)(differ_bits(lo) | (differ_bits(hi) << 8)));
    return differ_count(lo) + differ_count(hi);
}

/* As `byte_mask_lane`, for the last bytes of a page, `from..to`; `from` is a multiple of 8. */
FN u32 byte_mask_edge(GLOBAL const u8 *current, GLOBAL const u8 *twin, GLOBAL u8 *mask, u64 from, u64 to)
{
    u32 count = 0;
    u32 bits = 0;
    u64 i;
    for (i = from; i < to; i++) {
        u32 differs = current[i] != twin[i] ? 1u : 0u;
        count += differs;
        bits |= differs << (u32)(i % 8);
        if (i % 8 == 7 || i + 1 == to) {
            mask[i / 8] = (u8)bits;
            bits = 0;
        }
    }
    return count;
}

/* What thread `thread` does of a page of `len` bytes: its part of the mask, and how many of its
 * bytes differ. */
FN u32 byte_mask_thread(GLOBAL const u8 *current, GLOBAL const u8 *twin, GLOBAL u8 *mask, u64 len, u32 thread)
{
    u64 at = (u64)thread * BYTE_MASK_LANE_BYTES;
    u32 count = 0;
    for (; at + BYTE_MASK_STEP_BYTES + BYTE_MASK_LANE_BYTES <= len; at += 2 * BYTE_MASK_STEP_BYTES) {
        u64 next = at + BYTE_MASK_STEP_BYTES;
        Word16 mine = load16(current + at);
        Word16 old = load16(twin + at);
        Word16 mine_next = load16(current + next);
        Word16 old_next = load16(twin + next);
        count += byte_mask_lane(mask + at / 8, mine, old);
        count += byte_mask_lane(mask + next / 8, mine_next, old_next);
    }
    for (; at + BYTE_MASK_LANE_BYTES <= len; at += BYTE_MASK_STEP_BYTES) {
        count += byte_mask_lane(mask + at / 8, load16(current + at), load16(twin + at));
    }
    if (at < len) {
        count += byte_mask_edge(current, twin, mask, at, len);
    }
    return count;
}

#endif
