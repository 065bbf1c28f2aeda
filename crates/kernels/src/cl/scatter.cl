/* Scatter: copies `params.count` extents from `staging` to `destination`. Any number of groups of
 * SCATTER_GROUP_SIZE threads; the extents do not overlap in the destination. */
#include "scatter.h"

KERNEL void scatter(GLOBAL const u8 *staging, GLOBAL const ScatterExtent *extents, GLOBAL u8 *destination,
                    const ScatterParams params)
{
    scatter_thread(staging, extents, destination, params.count, params.staging_at, params.destination_at,
                   group_index(), group_count(), thread_in_group());
}
