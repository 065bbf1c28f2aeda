/* AES in counter mode, per-thread part: many pieces, each with a counter to begin from.
 *
 * A team of 32 threads takes a piece in steps of 4 KiB: thread l the blocks l, l + 32, ..., so that
 * neighbours touch neighbouring bytes. Pieces begin at 16-byte boundaries and may have any length;
 * nothing beyond their last byte is touched.
 */
#ifndef BIFOLIO_AES_CTR_H
#define BIFOLIO_AES_CTR_H

#include "aes.h"

#define AES_CTR_GROUP_SIZE 256u
#define AES_CTR_TEAM_SIZE 32u
#define AES_CTR_TEAMS (AES_CTR_GROUP_SIZE / AES_CTR_TEAM_SIZE)
#define AES_CTR_STEP_BLOCKS (AES_CTR_TEAM_SIZE * AES_BLOCKS)

typedef struct {
    u64 src; /* place in the source */
    u64 dst; /* place in the destination */
    u64 len; /* bytes */
    u64 counter_hi; /* of the first block */
    u64 counter_lo;
} AesCtrPiece;

typedef struct {
    u64 src_at; /* added to every `src` */
    u64 dst_at; /* added to every `dst` */
    u64 count;  /* pieces */
    u32 rounds; /* 10, 12 or 14 */
    u32 reserved;
} AesCtrParams;

STATIC_ASSERT(sizeof(AesCtrPiece) == 40, aes_ctr_piece_matches_rust);
STATIC_ASSERT(sizeof(AesCtrParams) == 32, aes_ctr_params_match_rust);

/* The bytes of a word in the other order. */
FN u32 aes_swap32(u32 word) { return permute4(word, word, 0x0123); }
FN u64 aes_swap64(u64 word) { return (u64)aes_swap32((u32)word) << 32 | aes_swap32((u32)(word >> 32)); }

/* The 1 to 15 bytes at `at`, and zeros. */
FN void aes_load_part(PRIVATE Word16 *word, GLOBAL const u8 *at, u32 bytes)
{
    u32 i;
    word->lo = 0;
    word->hi = 0;
    for (i = 0; i < bytes; i++) {
        if (i < 8) {
            word->lo |= (u64)at[i] << (i * 8);
        } else {
            word->hi |= (u64)at[i] << (i * 8 - 64);
        }
    }
}

FN void aes_store_part(GLOBAL u8 *at, u64 lo, u64 hi, u32 bytes)
{
    u32 i;
    for (i = 0; i < bytes; i++) {
        at[i] = (u8)(i < 8 ? lo >> (i * 8) : hi >> (i * 8 - 64));
    }
}

/* Adds the key stream in `s` to a thread's blocks of one step, which begins with block `first`. The
 * one block in which a piece may end is done last, so that the code for it is there once. */
FN void aes_ctr_add(PRIVATE const u32 *s, GLOBAL const u8 *src, GLOBAL u8 *dst, u64 len, u64 first, u32 lane)
{
    u64 part_at = len;
    u64 lo = 0;
    u64 hi = 0;
    Word16 word;
    u32 k;
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        u64 at = (first + k * AES_CTR_TEAM_SIZE + lane) * 16;
        if (at + 16 <= len) {
            word = load16(src + at);
            word.lo ^= aes_lo(s, k);
            word.hi ^= aes_hi(s, k);
            store16(dst + at, word);
        } else if (at < len) {
            part_at = at;
            lo = aes_lo(s, k);
            hi = aes_hi(s, k);
        }
    }
    if (part_at < len) {
        aes_load_part(&word, src + part_at, (u32)(len - part_at));
        aes_store_part(dst + part_at, word.lo ^ lo, word.hi ^ hi, (u32)(len - part_at));
    }
}

/* What thread `lane` of its team does for one piece. The counter is 128 bits wide, or with
 * `low_only`, a constant, its last 32 bits count alone, as in GCM. */
FN void aes_ctr_team(GLOBAL const u8 *src, GLOBAL u8 *dst, u64 len, u64 counter_hi, u64 counter_lo,
                     LOCAL const u32 *schedule, u32 rounds, u32 lane, u32 low_only)
{
    u64 first;
    for (first = 0; (first + lane) * 16 < len; first += AES_CTR_STEP_BLOCKS) {
        u32 s[32];
        u32 k;
        UNROLL
        for (k = 0; k < AES_BLOCKS; k++) {
            u64 n = first + k * AES_CTR_TEAM_SIZE + lane;
            u64 lo = low_only ? (counter_lo & 0xffffffff00000000) | (u32)(counter_lo + n) : counter_lo + n;
            u64 hi = !low_only && lo < n ? counter_hi + 1 : counter_hi;
            aes_put(s, k, aes_swap64(hi), aes_swap64(lo));
        }
        aes_slice(s);
        aes_encrypt(s, schedule, rounds);
        aes_unslice(s);
        aes_ctr_add(s, src, dst, len, first, lane);
    }
}

#endif
