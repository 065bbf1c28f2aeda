/* Three-way merge: one group of MERGE_GROUP_SIZE threads for each entry. `flags` gets one word for
 * each; every word is written, so it needs no clearing. Pages of different entries do not overlap. */
#include "merge.h"

KERNEL void merge(GLOBAL u8 *current, GLOBAL u8 *twin, GLOBAL const u8 *incoming, GLOBAL const MergeEntry *entries,
                  GLOBAL u32 *flags, const MergeParams params)
{
    LOCAL_VAR u32 found;
    u32 thread = thread_in_group();
    u32 page = group_index();
    u32 mine;

    if (thread == 0) {
        found = 0;
    }
    mine = merge_thread(current + (params.current_at + entries[page].current),
                        twin + (params.twin_at + entries[page].twin),
                        incoming + (params.incoming_at + entries[page].incoming), entries[page].len, thread);
    group_barrier(); /* `found` is cleared before anybody adds to it. */
    if (mine != 0) {
        local_or(&found, mine);
    }
    group_barrier(); /* Everybody has added before it is read. */
    if (thread == 0) {
        flags[page] = found;
    }
}
