/* RAID-6: one group of RAID6_GROUP_SIZE threads for each piece of each stripe. `places` holds data + 2
 * words for each stripe. */
#include "raid6.h"

KERNEL void raid6_generate(GLOBAL u8 *base, GLOBAL const u64 *places, const Raid6Params params)
{
    u32 stripe = group_index() / params.pieces;
    u64 at = raid6_place(group_index() - stripe * params.pieces, thread_in_group());
    if (at < params.chunk_bytes) {
        raid6_generate_lane(base + params.members_at, places + (u64)stripe * (params.data + 2), at, params.data);
    }
}

KERNEL void raid6_recover(GLOBAL u8 *base, GLOBAL const u64 *places, GLOBAL const Raid6Loss *losses,
                          const Raid6Params params)
{
    u32 stripe = group_index() / params.pieces;
    u64 at = raid6_place(group_index() - stripe * params.pieces, thread_in_group());
    if (at < params.chunk_bytes) {
        raid6_recover_lane(base + params.members_at, places + (u64)stripe * (params.data + 2), at, params.data,
                           losses[stripe].a, losses[stripe].b, losses[stripe].of_p, losses[stripe].of_q);
    }
}

/* `verdicts` gets a word for each piece. */
KERNEL void raid6_scrub(GLOBAL const u8 *base, GLOBAL const u64 *places, GLOBAL u32 *verdicts,
                        const Raid6Params params)
{
    LOCAL_VAR u32 lowest;
    LOCAL_VAR u32 highest;
    u32 thread = thread_in_group();
    u32 stripe = group_index() / params.pieces;
    u64 at = raid6_place(group_index() - stripe * params.pieces, thread);
    u32 my_lowest = RAID6_CLEAN;
    u32 my_highest = 0;

    if (thread == 0) {
        lowest = RAID6_CLEAN;
        highest = 0;
    }
    if (at < params.chunk_bytes) {
        raid6_scrub_lane(base + params.members_at, places + (u64)stripe * (params.data + 2), at, params.data, &my_lowest,
                         &my_highest);
    }
    group_barrier(); /* Both are set before anybody adds to them. */
    if (my_lowest != RAID6_CLEAN) {
        local_min(&lowest, my_lowest);
        local_max(&highest, my_highest);
    }
    group_barrier(); /* Everybody has added before they are read. */
    if (thread == 0) {
        verdicts[group_index()] = lowest == RAID6_CLEAN || lowest == highest ? lowest : RAID6_UNKNOWN;
    }
}
