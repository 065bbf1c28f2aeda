/* Fold: one group of FOLD_GROUP_SIZE threads for each entry. `flags` gets one word for each; every word is written, so it
 * needs no clearing. What is written of different entries does not overlap. */
#include "fold.h"

KERNEL void fold(GLOBAL u8 *memory, GLOBAL const FoldEntry *entries, GLOBAL u32 *flags, const FoldParams params)
{
    LOCAL_VAR u32 found;
    u32 thread = thread_in_group();
    u32 number = group_index();
    FoldPage page;
    u32 mine;

    if (thread == 0) {
        found = 0;
    }
    fold_page(memory, params.memory_at, entries + number, &page);
    mine = fold_thread(&page, thread);
    group_barrier(); /* `found` is cleared before anybody adds to it. */
    if (mine != 0) {
        local_or(&found, mine);
    }
    group_barrier(); /* Everybody has added before it is read. */
    if (thread == 0) {
        flags[number] = found;
    }
}
