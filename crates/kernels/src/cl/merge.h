/* Three-way merge, per-thread part: a page as a device has it, its twin (the pristine copy from
 * which the device started) and the newest content from elsewhere.
 *
 * One group merges one page. In each step it takes 4 KiB: thread t the 16 bytes at 16 * t, so that
 * neighbours touch neighbouring bytes. Two steps are loaded before either is stored, since the
 * compiler may not move a load across a store that might hit the same memory. What does not change
 * is not stored: a clean page costs three reads.
 *
 * Kernels of a program may be storing into the page as the device has it, where they have another part of it. So it is
 * changed by 32-bit words that are exchanged for what was read: a store that comes in between is found, and stays. The
 * last bytes of a page whose length is no multiple of 16 are read and written as bytes, and a store to one of those that
 * comes in between may be lost.
 *
 * Places are multiples of 16, lengths are anything. Nothing outside a page is read or written.
 */
#ifndef BIFOLIO_MERGE_H
#define BIFOLIO_MERGE_H

#include "differ.h"

#define MERGE_GROUP_SIZE 256u
#define MERGE_LANE_BYTES 16u
#define MERGE_STEP_BYTES (MERGE_GROUP_SIZE * MERGE_LANE_BYTES)

#define MERGE_INCOMING_CHANGED 1u
#define MERGE_OWN_CHANGED 2u
#define MERGE_RACE 4u

typedef struct {
    u64 current;  /* offsets of the page in each operand */
    u64 twin;
    u64 incoming;
    u64 len;      /* bytes */
} MergeEntry;

typedef struct {
    u64 current_at; /* added to the offsets in every entry */
    u64 twin_at;
    u64 incoming_at;
} MergeParams;

STATIC_ASSERT(sizeof(MergeEntry) == 32, merge_entry_matches_rust);
STATIC_ASSERT(sizeof(MergeParams) == 24, merge_params_match_rust);

/* Exchanges what is still `old` of the word that was `mine` for the incoming bytes. */
FN void merge_word(GLOBAL u8 *current, u32 mine, u32 old, u32 incoming)
{
    for (;;) {
        u32 merged = mine ^ ((mine ^ incoming) & ~(u32)differ_mask(mine ^ old));
        u32 found = merged == mine ? mine : global_swap((GLOBAL u32 *)current, mine, merged);
        if (found == mine) {
            return;
        }
        mine = found; /* Somebody has stored there since. */
    }
}

/* Merges the 16 bytes whose content was loaded from `current`, `twin` and the incoming page. */
FN u32 merge_lane(GLOBAL u8 *current, GLOBAL u8 *twin, Word16 mine, Word16 old, Word16 incoming)
{
    u64 own_lo = differ_mask(mine.lo ^ old.lo);
    u64 own_hi = differ_mask(mine.hi ^ old.hi);
    u64 news_lo = incoming.lo ^ old.lo;
    u64 news_hi = incoming.hi ^ old.hi;
    /* The bits to turn over if the incoming byte shall replace mine. */
    u64 apart_lo = mine.lo ^ incoming.lo;
    u64 apart_hi = mine.hi ^ incoming.hi;
    u32 found = (own_lo | own_hi) != 0 ? MERGE_OWN_CHANGED : 0u;
    if ((news_lo | news_hi) != 0) {
        u64 race = (own_lo & differ_mask(news_lo) & apart_lo) | (own_hi & differ_mask(news_hi) & apart_hi);
        u64 take_lo = apart_lo & ~own_lo;
        u64 take_hi = apart_hi & ~own_hi;
        found |= MERGE_INCOMING_CHANGED | (race != 0 ? MERGE_RACE : 0u);
        store16(twin, incoming);
        if ((take_lo | take_hi) != 0) {
            merge_word(current, (u32)mine.lo, (u32)old.lo, (u32)incoming.lo);
            merge_word(current + 4, (u32)(mine.lo >> 32), (u32)(old.lo >> 32), (u32)(incoming.lo >> 32));
            merge_word(current + 8, (u32)mine.hi, (u32)old.hi, (u32)incoming.hi);
            merge_word(current + 12, (u32)(mine.hi >> 32), (u32)(old.hi >> 32), (u32)(incoming.hi >> 32));
        }
    }
    return found;
}

/* As `merge_lane`, for the last bytes of a page, `from..to`. */
FN u32 merge_edge(GLOBAL u8 *current, GLOBAL u8 *twin, GLOBAL const u8 *incoming, u64 from, u64 to)
{
    u32 found = 0;
    u64 i;
    for (i = from; i < to; i++) {
        u8 mine = current[i];
        u8 old = twin[i];
        u8 theirs = incoming[i];
        found |= mine != old ? MERGE_OWN_CHANGED : 0u;
        if (theirs != old) {
            found |= MERGE_INCOMING_CHANGED | (mine != old && mine != theirs ? MERGE_RACE : 0u);
            twin[i] = theirs;
            if (mine == old) {
                current[i] = theirs;
            }
        }
    }
    return found;
}

/* What thread `thread` merges of a page of `len` bytes, and the flags that it found. */
FN u32 merge_thread(GLOBAL u8 *current, GLOBAL u8 *twin, GLOBAL const u8 *incoming, u64 len, u32 thread)
{
    u64 at = (u64)thread * MERGE_LANE_BYTES;
    u32 found = 0;
    for (; at + MERGE_STEP_BYTES + MERGE_LANE_BYTES <= len; at += 2 * MERGE_STEP_BYTES) {
        u64 next = at + MERGE_STEP_BYTES;
        Word16 mine = load16(current + at);
        Word16 old = load16(twin + at);
        Word16 theirs = load16(incoming + at);
        Word16 mine_next = load16(current + next);
        Word16 old_next = load16(twin + next);
        Word16 theirs_next = load16(incoming + next);
        found |= merge_lane(current + at, twin + at, mine, old, theirs);
        found |= merge_lane(current + next, twin + next, mine_next, old_next, theirs_next);
    }
    for (; at + MERGE_LANE_BYTES <= len; at += MERGE_STEP_BYTES) {
        found |= merge_lane(current + at, twin + at, load16(current + at), load16(twin + at), load16(incoming + at));
    }
    if (at < len) {
        found |= merge_edge(current, twin, incoming, at, len);
    }
    return found;
}

#endif
