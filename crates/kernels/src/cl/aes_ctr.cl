/* AES in counter mode: one team of 32 threads for each piece. Source and destination are the same or
 * apart. */
#include "aes_ctr.h"

KERNEL void aes_ctr(GLOBAL const u32 *keys, GLOBAL const AesCtrPiece *pieces, GLOBAL const u8 *src, GLOBAL u8 *dst,
                    const AesCtrParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    u32 thread = thread_in_group();
    u64 piece = (u64)group_index() * AES_CTR_TEAMS + thread / AES_CTR_TEAM_SIZE;
    aes_fetch_schedule(schedule, keys, params.rounds, thread, AES_CTR_GROUP_SIZE);
    group_barrier(); /* The schedule is complete before anybody uses it. */
    if (piece < params.count) {
        aes_ctr_team(src + (params.src_at + pieces[piece].src), dst + (params.dst_at + pieces[piece].dst),
                     pieces[piece].len, pieces[piece].counter_hi, pieces[piece].counter_lo, schedule, params.rounds,
                     thread % AES_CTR_TEAM_SIZE, 0);
    }
}
