/* Byte mask: one group of BYTE_MASK_GROUP_SIZE threads for each entry. `counts` gets the number of
 * differing bytes of each; every word of it and every byte of the masks is written, so neither
 * needs clearing. Masks of different entries do not overlap. */
#include "byte_mask.h"

KERNEL void byte_mask(GLOBAL const u8 *current, GLOBAL const u8 *twin, GLOBAL u8 *mask,
                      GLOBAL const ByteMaskEntry *entries, GLOBAL u32 *counts, const ByteMaskParams params)
{
    LOCAL_VAR u32 found[BYTE_MASK_COUNTERS];
    u32 thread = thread_in_group();
    u32 page = group_index();
    u32 mine;

    if (thread < BYTE_MASK_COUNTERS) {
        found[thread] = 0;
    }
    mine = byte_mask_thread(current + (params.current_at + entries[page].current),
                            twin + (params.twin_at + entries[page].twin),
                            mask + (params.mask_at + entries[page].mask), entries[page].len, thread);
    group_barrier(); /* The counters are cleared before anybody adds to them. */
    if (mine != 0) {
        local_add(&found[thread % BYTE_MASK_COUNTERS], mine);
    }
    group_barrier(); /* Everybody has added before they are read. */
    if (thread == 0) {
        u32 sum = 0;
        u32 i;
        for (i = 0; i < BYTE_MASK_COUNTERS; i++) {
            sum += found[i];
        }
        counts[page] = sum;
    }
}
