/* CRC32C: one team of 32 threads for each block; `crcs` gets a word for each. */
#include "crc32c.h"

KERNEL void crc32c(GLOBAL const u8 *base, GLOBAL const Crc32cBlock *blocks, GLOBAL u32 *crcs, const Crc32cParams params)
{
    LOCAL_VAR u32 table[CRC32C_TABLE_WORDS];
    LOCAL_VAR u32 after[32];
    LOCAL_VAR u32 sums[CRC32C_GROUP_SIZE];
    u32 thread = thread_in_group();
    u32 lane = thread % CRC32C_TEAM_SIZE;
    u64 own = (u64)group_index() * CRC32C_TEAMS + thread / CRC32C_TEAM_SIZE;
    u32 here = own < params.count;
    u32 i;

    UNROLL
    for (i = 0; i < CRC32C_TABLE_WORDS / CRC32C_GROUP_SIZE; i++) {
        u32 index = i * CRC32C_GROUP_SIZE + thread;
        table[index] = crc32c_entry(params.step, index);
    }
    if (thread < 32) {
        after[thread] = params.after[thread];
    }
    group_barrier(); /* The tables are complete before anybody uses them. */
    sums[thread] =
        here ? crc32c_lane(base + (params.blocks_at + blocks[own].at), blocks[own].len, table, after, lane) : 0;
    group_barrier(); /* All parts are there before they are added up. */
    if (here && lane == 0) {
        u32 sum = 0;
        for (i = 0; i < CRC32C_TEAM_SIZE; i++) {
            sum ^= sums[thread + i];
        }
        crcs[own] = crc32c_finish(base + (params.blocks_at + blocks[own].at), blocks[own].len, sum);
    }
}
