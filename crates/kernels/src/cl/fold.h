/* Fold, per-thread part: brings a page of a device up to what all devices have released. On the content of the page's
 * home it lays what each donor has released, puts that under what this device has changed and not released, and notes
 * what the file has.
 *
 * One group folds one page. In each step it takes 4 KiB: thread t the 16 bytes at 16 * t of everything. All loads of a
 * step come before its stores, as a donor, the content and the origin may be what the page itself is written to (its own
 * twin and base); there is no step ahead, since a step has up to ten loads in flight already. Each of those is read once,
 * as it may be memory of another device.
 *
 * A donor has released the bytes in which its twin differs from its base. They count from that base: a byte that has
 * become another since is somebody's who came earlier in the list, or a CPU's, and stays.
 *
 * Kernels of a program may be storing into the page as the device has it; see `merge.h`, by which it is changed. A page
 * without a twin nobody uses: it is written over. The base is always written, for it is not read.
 *
 * Places are multiples of 16, lengths are anything. Nothing outside a page is read or written.
 */
#ifndef BIFOLIO_FOLD_H
#define BIFOLIO_FOLD_H

#include "merge.h"

#define FOLD_GROUP_SIZE 256u
#define FOLD_LANE_BYTES 16u
#define FOLD_STEP_BYTES (FOLD_GROUP_SIZE * FOLD_LANE_BYTES)
#define FOLD_DONORS_MAX 3u
/* The place of what a page does not have. */
#define FOLD_NONE (~(u64)0)

#define FOLD_AHEAD 1u
#define FOLD_OWN_CHANGED 2u
#define FOLD_LOST 4u

typedef struct {
    u64 twin;
    u64 base;
} FoldDonor;

typedef struct {
    u64 current; /* offsets of the page's parts in memory, or FOLD_NONE for all but this one and the content */
    u64 twin;
    u64 base;
    u64 content;
    u64 origin;
    u64 len; /* bytes */
    FoldDonor donors[FOLD_DONORS_MAX];
} FoldEntry;

typedef struct {
    u64 memory_at; /* added to the offsets in every entry */
} FoldParams;

STATIC_ASSERT(sizeof(FoldEntry) == 96, fold_entry_matches_rust);
STATIC_ASSERT(sizeof(FoldParams) == 8, fold_params_match_rust);

/* An entry as pointers, 0 for what the page does not have. */
typedef struct {
    GLOBAL u8 *current;
    GLOBAL u8 *twin;
    GLOBAL u8 *base;
    GLOBAL const u8 *content;
    GLOBAL const u8 *origin;
    GLOBAL const u8 *donor_twin[FOLD_DONORS_MAX];
    GLOBAL const u8 *donor_base[FOLD_DONORS_MAX];
    u64 len;
} FoldPage;

/* What a thread has read of a page in one step; 0 is what is not there. */
typedef struct {
    Word16 current;
    Word16 twin;
    Word16 content;
    Word16 origin;
    Word16 donor_twin[FOLD_DONORS_MAX];
    Word16 donor_base[FOLD_DONORS_MAX];
} FoldLane;

FN GLOBAL u8 *fold_place(GLOBAL u8 *memory, u64 memory_at, u64 place)
{
    return place == FOLD_NONE ? 0 : memory + (memory_at + place);
}

/* All words are read before the first one is looked at, so that their loads do not wait for each other. */
FN void fold_page(GLOBAL u8 *memory, u64 memory_at, GLOBAL const FoldEntry *entry, PRIVATE FoldPage *page)
{
    u64 donor_twin[FOLD_DONORS_MAX];
    u64 donor_base[FOLD_DONORS_MAX];
    u64 current = entry->current;
    u64 twin = entry->twin;
    u64 base = entry->base;
    u64 content = entry->content;
    u64 origin = entry->origin;
    u32 i;
    page->len = entry->len;
    UNROLL
    for (i = 0; i < FOLD_DONORS_MAX; i++) {
        donor_twin[i] = entry->donors[i].twin;
        donor_base[i] = entry->donors[i].base;
    }
    page->current = fold_place(memory, memory_at, current);
    page->twin = fold_place(memory, memory_at, twin);
    page->base = fold_place(memory, memory_at, base);
    page->content = fold_place(memory, memory_at, content);
    page->origin = fold_place(memory, memory_at, origin);
    UNROLL
    for (i = 0; i < FOLD_DONORS_MAX; i++) {
        page->donor_twin[i] = fold_place(memory, memory_at, donor_twin[i]);
        page->donor_base[i] = fold_place(memory, memory_at, donor_base[i]);
    }
}

/* The 16 bytes at `at`, or 0: a value that waits for no other load. */
#define FOLD_LOAD(word, from, at)                                                                                      \
    do {                                                                                                               \
        (word).lo = 0;                                                                                                 \
        (word).hi = 0;                                                                                                 \
        if ((from) != 0) {                                                                                             \
            (word) = load16_in_order((from) + (at));                                                                   \
        }                                                                                                              \
    } while (0)

/* Reads what lies at `at` of a page. */
FN void fold_load(PRIVATE const FoldPage *page, u64 at, PRIVATE FoldLane *lane)
{
    u32 i;
    lane->content = load16_in_order(page->content + at);
    FOLD_LOAD(lane->origin, page->origin, at);
    UNROLL
    for (i = 0; i < FOLD_DONORS_MAX; i++) {
        FOLD_LOAD(lane->donor_twin[i], page->donor_twin[i], at);
        FOLD_LOAD(lane->donor_base[i], page->donor_base[i], at);
    }
    FOLD_LOAD(lane->twin, page->twin, at);
    lane->current.lo = 0;
    lane->current.hi = 0;
    if (page->twin != 0) {
        lane->current = load16_in_order(page->current + at);
    }
}

/* Lays on 8 bytes of content what a donor has released. Not 0 if a byte of it finds another there. */
FN u64 fold_donor(PRIVATE u64 *content, u64 twin, u64 base)
{
    u64 released = differ_mask(twin ^ base);
    u64 taken = differ_mask(*content ^ base);
    u64 apart = *content ^ twin;
    *content ^= apart & released & ~taken;
    return apart & released & taken;
}

/* Folds the 16 bytes that were read at `at` of a page, and returns the flags that it found. */
FN u32 fold_lane(PRIVATE const FoldPage *page, u64 at, PRIVATE const FoldLane *lane)
{
    Word16 folded = lane->content;
    Word16 origin = lane->origin;
    u64 lost = 0;
    u32 found;
    u32 i;
    UNROLL
    for (i = 0; i < FOLD_DONORS_MAX; i++) {
        lost |= fold_donor(&folded.lo, lane->donor_twin[i].lo, lane->donor_base[i].lo);
        lost |= fold_donor(&folded.hi, lane->donor_twin[i].hi, lane->donor_base[i].hi);
    }
    if (page->origin == 0) {
        origin = lane->content;
    }
    found = lost != 0 ? FOLD_LOST : 0u;
    found |= ((folded.lo ^ origin.lo) | (folded.hi ^ origin.hi)) != 0 ? FOLD_AHEAD : 0u;
    if (page->base != 0) {
        store16(page->base + at, origin);
    }
    if (page->twin == 0) {
        store16(page->current + at, folded);
        return found;
    }
    if ((merge_lane(page->current + at, page->twin + at, lane->current, lane->twin, folded) & MERGE_OWN_CHANGED) != 0) {
        found |= FOLD_OWN_CHANGED;
    }
    return found;
}

/* As `fold_lane`, for byte `at` of a page. */
FN u32 fold_byte(PRIVATE const FoldPage *page, u64 at)
{
    u8 folded = page->content[at];
    u8 origin = page->origin != 0 ? page->origin[at] : folded;
    u32 found = 0;
    u32 i;
    for (i = 0; i < FOLD_DONORS_MAX; i++) {
        if (page->donor_twin[i] != 0) {
            u8 twin = page->donor_twin[i][at];
            u8 base = page->donor_base[i][at];
            if (twin != base && folded == base) {
                folded = twin;
            } else if (twin != base && folded != twin) {
                found |= FOLD_LOST;
            }
        }
    }
    found |= folded != origin ? FOLD_AHEAD : 0u;
    if (page->base != 0) {
        page->base[at] = origin;
    }
    if (page->twin == 0) {
        page->current[at] = folded;
    } else if (page->current[at] != page->twin[at]) {
        found |= FOLD_OWN_CHANGED;
        page->twin[at] = folded;
    } else if (page->twin[at] != folded) {
        page->twin[at] = folded;
        page->current[at] = folded;
    }
    return found;
}

/* What thread `thread` folds of a page, and the flags that it found. */
FN u32 fold_thread(PRIVATE const FoldPage *page, u32 thread)
{
    u64 at = (u64)thread * FOLD_LANE_BYTES;
    u32 found = 0;
    for (; at + FOLD_LANE_BYTES <= page->len; at += FOLD_STEP_BYTES) {
        FoldLane lane;
        fold_load(page, at, &lane);
        found |= fold_lane(page, at, &lane);
    }
    for (; at < page->len; at++) {
        found |= fold_byte(page, at);
    }
    return found;
}

#endif
