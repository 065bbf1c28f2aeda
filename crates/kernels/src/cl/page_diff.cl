/* Twin comparison: `bitmap` gets one bit for every 4 KiB page, bit p % 32 of word p / 32, set if
 * some byte of page p of `a` and `b` differs. One group of PAGE_DIFF_GROUP_SIZE threads for each
 * word; every word is written, so the bitmap needs no clearing. */
#include "page_diff.h"

KERNEL void page_diff(GLOBAL const u8 *a, GLOBAL const u8 *b, GLOBAL u32 *bitmap, const PageDiffParams params)
{
    LOCAL_VAR u32 found;
    u32 thread = thread_in_group();
    u32 word = group_index();
    u32 mine;

    if (thread == 0) {
        found = 0;
    }
    mine = page_diff_thread(a, b, params.bytes, word, thread);
    group_barrier(); /* `found` is cleared before anybody adds to it. */
    if (mine != 0) {
        local_or(&found, mine);
    }
    group_barrier(); /* Everybody has added before it is read. */
    if (thread == 0) {
        bitmap[word] = found;
    }
}
