/* AES-XTS. `keys` are three schedules of AES_SCHEDULE_WORDS: of the data key for encryption and for
 * decryption, and of the tweak key. First `aes_xts_tweaks`, one thread for eight sectors, then one of
 * the others, four threads for 512 bytes. Source and destination are the same or apart. */
#include "aes_xts.h"

KERNEL void aes_xts_tweaks(GLOBAL const u32 *keys, GLOBAL u8 *tweaks, const AesXtsParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    u32 thread = thread_in_group();
    aes_fetch_schedule(schedule, keys + 2 * AES_SCHEDULE_WORDS, params.rounds, thread, AES_XTS_GROUP_SIZE);
    group_barrier(); /* The schedule is complete before anybody uses it. */
    aes_xts_tweaks_thread(tweaks + params.tweaks_at, schedule, params.sectors, params.first_iv, params.iv_step,
                          params.rounds, (u64)group_index() * AES_XTS_GROUP_SIZE + thread);
}

KERNEL void aes_xts_encrypt(GLOBAL const u32 *keys, GLOBAL const u8 *tweaks, GLOBAL const u8 *src, GLOBAL u8 *dst,
                            const AesXtsParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    u32 thread = thread_in_group();
    aes_fetch_schedule(schedule, keys, params.rounds, thread, AES_XTS_GROUP_SIZE);
    group_barrier(); /* As above. */
    aes_xts_thread(src + params.src_at, dst + params.dst_at, tweaks + params.tweaks_at, schedule, params.sectors,
                   params.units_per_sector, params.rounds, (u64)group_index() * AES_XTS_GROUP_SIZE + thread, 0);
}

KERNEL void aes_xts_decrypt(GLOBAL const u32 *keys, GLOBAL const u8 *tweaks, GLOBAL const u8 *src, GLOBAL u8 *dst,
                            const AesXtsParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    u32 thread = thread_in_group();
    aes_fetch_schedule(schedule, keys + AES_SCHEDULE_WORDS, params.rounds, thread, AES_XTS_GROUP_SIZE);
    group_barrier(); /* As above. */
    aes_xts_thread(src + params.src_at, dst + params.dst_at, tweaks + params.tweaks_at, schedule, params.sectors,
                   params.units_per_sector, params.rounds, (u64)group_index() * AES_XTS_GROUP_SIZE + thread, 1);
}
