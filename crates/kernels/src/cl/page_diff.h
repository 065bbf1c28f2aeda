/* Twin comparison, per-thread part: which 4 KiB pages of `a` differ from `b`.
 *
 * One group makes one u32 of the bitmap, that is 32 pages. In each step the group reads one whole
 * page of each buffer: thread t takes the 16 bytes at 16 * t, so that neighbours read neighbouring
 * bytes. The steps do not depend on each other, so many loads are in flight, and a thread keeps its
 * findings in a register until the end.
 */
#ifndef BIFOLIO_PAGE_DIFF_H
#define BIFOLIO_PAGE_DIFF_H

#include "kdef.h"

#define PAGE_DIFF_PAGE_BYTES 4096u
#define PAGE_DIFF_PAGES_PER_WORD 32u
#define PAGE_DIFF_GROUP_SIZE 256u
#define PAGE_DIFF_LANE_BYTES 16u

STATIC_ASSERT(PAGE_DIFF_GROUP_SIZE * PAGE_DIFF_LANE_BYTES == PAGE_DIFF_PAGE_BYTES, a_group_reads_one_page_a_step);

typedef struct {
    u64 bytes; /* length of both buffers */
} PageDiffParams;

STATIC_ASSERT(sizeof(PageDiffParams) == 8, page_diff_params_match_rust);

/* Whether the 16 bytes at `at` differ. */
FN u32 page_diff_lane(GLOBAL const u8 *a, GLOBAL const u8 *b, u64 at)
{
    Word16 left = load16(a + at);
    Word16 right = load16(b + at);
    return ((left.lo ^ right.lo) | (left.hi ^ right.hi)) != 0 ? 1u : 0u;
}

/* As `page_diff_lane`, for the 16 bytes among which the buffers may end. */
FN u32 page_diff_edge(GLOBAL const u8 *a, GLOBAL const u8 *b, u64 at, u64 bytes)
{
    u32 differs = 0;
    u64 end = at + PAGE_DIFF_LANE_BYTES < bytes ? at + PAGE_DIFF_LANE_BYTES : bytes;
    for (; at < end; at++) {
        differs |= a[at] != b[at] ? 1u : 0u;
    }
    return differs;
}

/* What thread `thread` finds for word `word` of the bitmap: bit p is set if its part of the word's
 * page p differs. Reads nothing at or beyond `bytes`. */
FN u32 page_diff_thread(GLOBAL const u8 *a, GLOBAL const u8 *b, u64 bytes, u32 word, u32 thread)
{
    u64 word_bytes = (u64)PAGE_DIFF_PAGES_PER_WORD * PAGE_DIFF_PAGE_BYTES;
    u64 start = word * word_bytes;
    u64 at = start + thread * PAGE_DIFF_LANE_BYTES;
    u32 found = 0;
    u32 page;
    if (start + word_bytes <= bytes) {
        UNROLL8
        for (page = 0; page < PAGE_DIFF_PAGES_PER_WORD; page++) {
            found |= page_diff_lane(a, b, at + page * PAGE_DIFF_PAGE_BYTES) << page;
        }
        return found;
    }
    for (page = 0; page < PAGE_DIFF_PAGES_PER_WORD && at < bytes; page++) {
        u32 whole = at + PAGE_DIFF_LANE_BYTES <= bytes;
        found |= (whole ? page_diff_lane(a, b, at) : page_diff_edge(a, b, at, bytes)) << page;
        at += PAGE_DIFF_PAGE_BYTES;
    }
    return found;
}

#endif
