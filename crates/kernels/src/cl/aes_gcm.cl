/* AES-GCM of many messages. `keys` is the schedule for encryption and behind it the powers of H. First
 * `aes_gcm_starts`, one thread for eight messages, then one of the others, 32 threads for one. Source
 * and destination are the same or apart. */
#include "aes_gcm.h"

/* A thread of every eighth adds up four lanes, then the first of a team those eight. */
#define AES_GCM_SUM(sums, thread, lane, hash) \
    aes_gcm_keep(sums, thread, hash); \
    group_barrier(); /* All parts are there. */ \
    if (lane % 4 == 0) { \
        aes_gcm_kept(hash, sums, thread, 4, 1); \
        aes_gcm_keep(sums, thread, hash); \
    } \
    group_barrier(); /* All sums of four are there. */ \
    if (lane == 0) { \
        aes_gcm_kept(hash, sums, thread, 8, 4); \
    }

/* The table of messages for blocks in a row, one thread for each. */
KERNEL void aes_gcm_messages(GLOBAL AesGcmMessage *messages, const AesGcmBlocks blocks)
{
    u64 m = (u64)group_index() * AES_GCM_GROUP_SIZE + thread_in_group();
    if (m < blocks.count) {
        aes_gcm_message_thread(messages, &blocks, m);
    }
}

KERNEL void aes_gcm_starts(GLOBAL const u32 *keys, GLOBAL const AesGcmMessage *messages, GLOBAL const u8 *meta,
                           GLOBAL u8 *starts, const AesGcmParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    u32 thread = thread_in_group();
    aes_fetch_schedule(schedule, keys, params.rounds, thread, AES_GCM_GROUP_SIZE);
    group_barrier(); /* The schedule is complete before anybody uses it. */
    aes_gcm_starts_thread(starts + params.starts_at, meta + params.meta_at, messages, keys + AES_SCHEDULE_WORDS,
                          schedule, params.count, params.rounds, (u64)group_index() * AES_GCM_GROUP_SIZE + thread);
}

KERNEL void aes_gcm_encrypt(GLOBAL const u32 *keys, GLOBAL const AesGcmMessage *messages, GLOBAL const u8 *starts,
                            GLOBAL const u8 *src, GLOBAL u8 *dst, GLOBAL u8 *meta, const AesGcmParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    LOCAL_VAR u32 sums[AES_GCM_GROUP_SIZE * 4];
    u32 thread = thread_in_group();
    u32 lane = thread % AES_GCM_TEAM_SIZE;
    u64 own = (u64)group_index() * AES_CTR_TEAMS + thread / AES_GCM_TEAM_SIZE;
    u32 here = own < params.count;
    u64 m = here ? own : params.count - 1;
    GLOBAL const AesGcmMessage *message = messages + m;
    GLOBAL const u8 *start = starts + (params.starts_at + m * 32);
    GLOBAL u8 *text = dst + (params.dst_at + message->dst);
    u32 hash[4] = {0, 0, 0, 0};

    aes_fetch_schedule(schedule, keys, params.rounds, thread, AES_GCM_GROUP_SIZE);
    group_barrier(); /* As above. */
    if (here) {
        aes_gcm_text_lane(src + (params.src_at + message->src), text, message->len, start, schedule, params.rounds,
                          lane);
    }
    group_fence(); /* The ciphertext is written before others read it. */
    if (here) {
        aes_gcm_hash_lane(hash, message, text, keys + AES_SCHEDULE_WORDS, lane);
    }
    AES_GCM_SUM(sums, thread, lane, hash)
    if (here && lane == 0) {
        aes_gcm_seal(meta + (params.meta_at + message->tag), hash, start);
    }
}

/* `rights` gets 1 for each message whose tag is right, else 0; the plaintext of others is not written. */
KERNEL void aes_gcm_decrypt(GLOBAL const u32 *keys, GLOBAL const AesGcmMessage *messages, GLOBAL const u8 *starts,
                            GLOBAL const u8 *src, GLOBAL u8 *dst, GLOBAL const u8 *meta, GLOBAL u32 *rights,
                            const AesGcmParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    LOCAL_VAR u32 sums[AES_GCM_GROUP_SIZE * 4];
    LOCAL_VAR u32 right[AES_CTR_TEAMS];
    u32 thread = thread_in_group();
    u32 lane = thread % AES_GCM_TEAM_SIZE;
    u32 team = thread / AES_GCM_TEAM_SIZE;
    u64 own = (u64)group_index() * AES_CTR_TEAMS + team;
    u32 here = own < params.count;
    u64 m = here ? own : params.count - 1;
    GLOBAL const AesGcmMessage *message = messages + m;
    GLOBAL const u8 *start = starts + (params.starts_at + m * 32);
    GLOBAL const u8 *text = src + (params.src_at + message->src);
    u32 hash[4] = {0, 0, 0, 0};

    aes_fetch_schedule(schedule, keys, params.rounds, thread, AES_GCM_GROUP_SIZE);
    if (here) {
        aes_gcm_hash_lane(hash, message, text, keys + AES_SCHEDULE_WORDS, lane);
    }
    AES_GCM_SUM(sums, thread, lane, hash)
    if (lane == 0) {
        right[team] = aes_gcm_right(meta + (params.meta_at + message->tag), hash, start);
        if (here) {
            rights[m] = right[team];
        }
    }
    group_fence(); /* The team knows; in place, every thread has read what others overwrite. */
    if (here && right[team] != 0) {
        aes_gcm_text_lane(text, dst + (params.dst_at + message->dst), message->len, start, schedule, params.rounds,
                          lane);
    }
}
