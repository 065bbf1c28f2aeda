/* The page comparison without its second barrier: thread 0 may read `found` before others have
 * added to it. It shows that the race detector is awake; nothing else uses it. */
#include "page_diff.h"

KERNEL void missing_barrier(GLOBAL const u8 *a, GLOBAL const u8 *b, GLOBAL u32 *bitmap, const PageDiffParams params)
{
    LOCAL_VAR u32 found;
    u32 thread = thread_in_group();
    u32 word = group_index();
    u32 mine;

    if (thread == 0) {
        found = 0;
    }
    mine = page_diff_thread(a, b, params.bytes, word, thread);
    group_barrier();
    if (mine != 0) {
        local_or(&found, mine);
    }
    if (thread == 0) {
        bitmap[word] = found;
    }
}
