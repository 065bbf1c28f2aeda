/* AES-GCM of many messages, per-thread part.
 *
 * A first kernel computes each message's start block J0 and its encryption, 32 bytes of scratch. Then
 * a team of 32 threads takes a message. Its authenticated blocks, those of the additional data, of the
 * ciphertext and of the lengths, are numbered in a row: thread l takes l, l + 32, ... by Horner's rule
 * with H^32, multiplies by the power of H that its last block needs, and the team adds up.
 *
 * Products in GF(2^128) are integer products of words with holes: of every four bits one is kept, so
 * that carries do not reach the next one. Nothing is looked up by data and nothing branches on it.
 */
#ifndef BIFOLIO_AES_GCM_H
#define BIFOLIO_AES_GCM_H

#include "aes_ctr.h"

#define AES_GCM_GROUP_SIZE AES_CTR_GROUP_SIZE
#define AES_GCM_TEAM_SIZE AES_CTR_TEAM_SIZE
#define AES_GCM_AAD_WORDS 8u
#define AES_GCM_POWERS 32u

typedef struct {
    u64 src;   /* place of the text in the source */
    u64 dst;   /* its place in the destination */
    u64 nonce; /* place of the nonce among nonces and tags */
    u64 tag;   /* place of the tag there */
    u64 len;   /* of the text, in bytes */
    u32 nonce_len; /* 12 or 16 */
    u32 aad_len;   /* at most 32 */
    u32 aad[AES_GCM_AAD_WORDS]; /* additional data, and zeros behind it */
} AesGcmMessage;

typedef struct {
    u64 src_at;     /* added to every `src` */
    u64 dst_at;     /* added to every `dst` */
    u64 meta_at;    /* added to places of nonces and tags */
    u64 starts_at;  /* added to the scratch */
    u64 count;      /* messages */
    u32 rounds;     /* 10, 12 or 14 */
    u32 reserved;
} AesGcmParams;

/* Blocks one behind the other: each a nonce of 16 bytes, a text and a tag. The additional data of each is its
 * number, the most significant byte first, and an id. */
typedef struct {
    u64 sealed; /* place of the first block in the source, and of its nonce among nonces and tags */
    u64 plain;  /* place of its text in the destination */
    u64 first;  /* its number */
    u64 len;    /* of all texts, in bytes */
    u64 block;  /* of each text but the last */
    u64 count;  /* blocks */
    u32 id[4];
} AesGcmBlocks;

STATIC_ASSERT(sizeof(AesGcmBlocks) == 64, aes_gcm_blocks_match_rust);
STATIC_ASSERT(sizeof(AesGcmMessage) == 80, aes_gcm_message_matches_rust);
STATIC_ASSERT(sizeof(AesGcmParams) == 48, aes_gcm_params_match_rust);

/* The message that block `m` is. */
FN void aes_gcm_message_thread(GLOBAL AesGcmMessage *messages, PRIVATE const AesGcmBlocks *blocks, u64 m)
{
    GLOBAL AesGcmMessage *message = messages + m;
    u64 nonce = blocks->sealed + m * (blocks->block + 32);
    u64 left = blocks->len - m * blocks->block;
    u64 len = left < blocks->block ? left : blocks->block;
    u64 number = blocks->first + m;
    message->src = nonce + 16;
    message->dst = blocks->plain + m * blocks->block;
    message->nonce = nonce;
    message->tag = nonce + 16 + len;
    message->len = len;
    message->nonce_len = 16;
    message->aad_len = 24;
    message->aad[0] = aes_swap32((u32)(number >> 32));
    message->aad[1] = aes_swap32((u32)number);
    message->aad[2] = blocks->id[0];
    message->aad[3] = blocks->id[1];
    message->aad[4] = blocks->id[2];
    message->aad[5] = blocks->id[3];
    message->aad[6] = 0;
    message->aad[7] = 0;
}

/* An element of GF(2^128) is an integer of four words, the least significant first, whose most
 * significant bit is the coefficient of 1. */
FN void aes_gcm_element(PRIVATE u32 *element, u64 lo, u64 hi)
{
    element[3] = aes_swap32((u32)lo);
    element[2] = aes_swap32((u32)(lo >> 32));
    element[1] = aes_swap32((u32)hi);
    element[0] = aes_swap32((u32)(hi >> 32));
}

FN u64 aes_gcm_lo(PRIVATE const u32 *element) { return aes_swap32(element[3]) | (u64)aes_swap32(element[2]) << 32; }
FN u64 aes_gcm_hi(PRIVATE const u32 *element) { return aes_swap32(element[1]) | (u64)aes_swap32(element[0]) << 32; }

/* The product of two polynomials over GF(2). At most eight terms meet in one of the bits that are
 * kept, which the three bits above it can hold. */
FN u64 aes_gcm_mul32(u32 x, u32 y)
{
    u32 x0 = x & 0x11111111u, x1 = x & 0x22222222u, x2 = x & 0x44444444u, x3 = x & 0x88888888u;
    u32 y0 = y & 0x11111111u, y1 = y & 0x22222222u, y2 = y & 0x44444444u, y3 = y & 0x88888888u;
    u64 z0 = (u64)x0 * y0 ^ (u64)x1 * y3 ^ (u64)x2 * y2 ^ (u64)x3 * y1;
    u64 z1 = (u64)x0 * y1 ^ (u64)x1 * y0 ^ (u64)x2 * y3 ^ (u64)x3 * y2;
    u64 z2 = (u64)x0 * y2 ^ (u64)x1 * y1 ^ (u64)x2 * y0 ^ (u64)x3 * y3;
    u64 z3 = (u64)x0 * y3 ^ (u64)x1 * y2 ^ (u64)x2 * y1 ^ (u64)x3 * y0;
    return (z0 & 0x1111111111111111) | (z1 & 0x2222222222222222) | (z2 & 0x4444444444444444) |
           (z3 & 0x8888888888888888);
}

/* The same for 64 bits; the product has four words. */
FN void aes_gcm_mul64(PRIVATE u32 *product, u32 x1, u32 x0, u32 y1, u32 y0)
{
    u64 low = aes_gcm_mul32(x0, y0);
    u64 high = aes_gcm_mul32(x1, y1);
    u64 middle = aes_gcm_mul32(x0 ^ x1, y0 ^ y1) ^ low ^ high;
    product[0] = (u32)low;
    product[1] = (u32)(low >> 32) ^ (u32)middle;
    product[2] = (u32)high ^ (u32)(middle >> 32);
    product[3] = (u32)(high >> 32);
}

/* Multiplies x by y. */
FN void aes_gcm_multiply(PRIVATE u32 *x, PRIVATE const u32 *y)
{
    u32 middle[4];
    u32 low[4];
    u32 high[4];
    u32 z[8];
    u32 i;
    aes_gcm_mul64(low, x[1], x[0], y[1], y[0]);
    aes_gcm_mul64(high, x[3], x[2], y[3], y[2]);
    aes_gcm_mul64(middle, x[1] ^ x[3], x[0] ^ x[2], y[1] ^ y[3], y[0] ^ y[2]);
    UNROLL
    for (i = 0; i < 4; i++) {
        z[i] = low[i];
        z[i + 4] = high[i];
    }
    UNROLL
    for (i = 0; i < 4; i++) {
        z[i + 2] ^= middle[i] ^ low[i] ^ high[i];
    }
    /* Of two integers whose top bits are the coefficients of 1, the product is one bit short. */
    UNROLL
    for (i = 7; i > 0; i--) {
        z[i] = shift_in(z[i], z[i - 1], 1);
    }
    z[0] <<= 1;
    /* x^128 is 1 + x + x^2 + x^7. */
    UNROLL
    for (i = 0; i < 4; i++) {
        z[i + 4] ^= z[i] ^ z[i] >> 1 ^ z[i] >> 2 ^ z[i] >> 7;
        z[i + 3] ^= z[i] << 31 ^ z[i] << 30 ^ z[i] << 25;
    }
    UNROLL
    for (i = 0; i < 4; i++) {
        x[i] = z[i + 4];
    }
}

/* H to the power of `exponent`, 1 to 32, from the powers behind the schedule. */
FN void aes_gcm_power(PRIVATE u32 *power, GLOBAL const u32 *powers, u32 exponent)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        power[i] = powers[(exponent - 1) * 4 + i];
    }
}

/* J0 of a nonce of 12 bytes, or of 16, of which it is the hash. */
FN void aes_gcm_start(PRIVATE u32 *start, GLOBAL const u8 *nonce, u32 nonce_len, GLOBAL const u32 *powers)
{
    Word16 word;
    aes_load_part(&word, nonce, nonce_len);
    aes_gcm_element(start, word.lo, word.hi);
    if (nonce_len == 12) {
        start[0] = 1;
    } else {
        u32 h[4];
        aes_gcm_power(h, powers, 1);
        aes_gcm_multiply(start, h);
        start[0] ^= 128;
        aes_gcm_multiply(start, h);
    }
}

/* J0 and its encryption for the eight messages of thread `thread` of the grid. */
FN void aes_gcm_starts_thread(GLOBAL u8 *starts, GLOBAL const u8 *meta, GLOBAL const AesGcmMessage *messages,
                              GLOBAL const u32 *powers, LOCAL const u32 *schedule, u64 count, u32 rounds, u64 thread)
{
    u64 first = thread * AES_BLOCKS;
    u32 s[32];
    u64 m;
    u32 k;
    if (first >= count) {
        return;
    }
    NO_UNROLL
    for (m = first; m < count && m < first + AES_BLOCKS; m++) {
        u32 element[4];
        Word16 start;
        aes_gcm_start(element, meta + messages[m].nonce, messages[m].nonce_len, powers);
        start.lo = aes_gcm_lo(element);
        start.hi = aes_gcm_hi(element);
        store16(starts + m * 32, start);
    }
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        /* The last message stands in for those that are not there. */
        u64 own = first + k < count ? first + k : count - 1;
        Word16 start = load16(starts + own * 32);
        aes_put(s, k, start.lo, start.hi);
    }
    aes_slice(s);
    aes_encrypt(s, schedule, rounds);
    aes_unslice(s);
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        if (first + k < count) {
            Word16 mask;
            mask.lo = aes_lo(s, k);
            mask.hi = aes_hi(s, k);
            store16(starts + (first + k) * 32 + 16, mask);
        }
    }
}

/* Adds authenticated block `i` of a message of `aad_blocks` and `blocks`. */
FN void aes_gcm_add_block(PRIVATE u32 *sum, GLOBAL const AesGcmMessage *message, GLOBAL const u8 *text, u64 len,
                          u64 aad_blocks, u64 blocks, u64 i)
{
    u32 element[4];
    u32 j;
    if (i >= aad_blocks && i < aad_blocks + blocks) {
        u64 at = (i - aad_blocks) * 16;
        Word16 word;
        if (at + 16 <= len) {
            word = load16(text + at);
        } else {
            aes_load_part(&word, text + at, (u32)(len - at));
        }
        aes_gcm_element(element, word.lo, word.hi);
    } else if (i < aad_blocks) {
        UNROLL
        for (j = 0; j < 4; j++) {
            element[3 - j] = aes_swap32(message->aad[i * 4 + j]);
        }
    } else {
        element[3] = 0;
        element[2] = message->aad_len * 8;
        element[1] = (u32)(len >> 29);
        element[0] = (u32)(len << 3);
    }
    UNROLL
    for (j = 0; j < 4; j++) {
        sum[j] ^= element[j];
    }
}

/* The part of a message's hash that thread `lane` of its team contributes; `text` is ciphertext. */
FN void aes_gcm_hash_lane(PRIVATE u32 *sum, GLOBAL const AesGcmMessage *message, GLOBAL const u8 *text,
                          GLOBAL const u32 *powers, u32 lane)
{
    u64 len = message->len;
    u64 aad_blocks = (message->aad_len + 15) / 16;
    u64 blocks = (len + 15) / 16;
    u64 total = aad_blocks + blocks + 1;
    u64 i = lane;
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    if (i >= total) {
        return;
    }
    aes_gcm_add_block(sum, message, text, len, aad_blocks, blocks, i);
    do {
        u32 power[4];
        i += AES_GCM_TEAM_SIZE;
        /* The next block of this thread follows after 32 multiplications. If there is none, the
         * block before has fewer to go. */
        aes_gcm_power(power, powers, i < total ? AES_GCM_POWERS : (u32)(total + AES_GCM_TEAM_SIZE - i));
        aes_gcm_multiply(sum, power);
        if (i < total) {
            aes_gcm_add_block(sum, message, text, len, aad_blocks, blocks, i);
        }
    } while (i < total);
}

FN void aes_gcm_keep(LOCAL u32 *sums, u32 thread, PRIVATE const u32 *element)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        sums[thread * 4 + i] = element[i];
    }
}

/* The sum of `count` kept elements, `stride` apart. */
FN void aes_gcm_kept(PRIVATE u32 *sum, LOCAL const u32 *sums, u32 first, u32 count, u32 stride)
{
    u32 i;
    u32 j;
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    for (j = 0; j < count; j++) {
        UNROLL
        for (i = 0; i < 4; i++) {
            sum[i] ^= sums[(first + j * stride) * 4 + i];
        }
    }
}

/* Writes the tag of a message whose hash is `hash`, given its part of the scratch. */
FN void aes_gcm_seal(GLOBAL u8 *tag, PRIVATE const u32 *hash, GLOBAL const u8 *start)
{
    Word16 mask = load16(start + 16);
    aes_store_part(tag, aes_gcm_lo(hash) ^ mask.lo, aes_gcm_hi(hash) ^ mask.hi, 16);
}

/* Whether a tag is the right one. */
FN u32 aes_gcm_right(GLOBAL const u8 *tag, PRIVATE const u32 *hash, GLOBAL const u8 *start)
{
    Word16 mask = load16(start + 16);
    Word16 given;
    aes_load_part(&given, tag, 16);
    return ((given.lo ^ mask.lo ^ aes_gcm_lo(hash)) | (given.hi ^ mask.hi ^ aes_gcm_hi(hash))) == 0 ? 1u : 0u;
}

/* A thread's part of the text, with the counter that follows J0. */
FN void aes_gcm_text_lane(GLOBAL const u8 *src, GLOBAL u8 *dst, u64 len, GLOBAL const u8 *start,
                          LOCAL const u32 *schedule, u32 rounds, u32 lane)
{
    Word16 j0 = load16(start);
    u64 lo = aes_swap64(j0.hi);
    lo = (lo & 0xffffffff00000000) | (u32)(lo + 1);
    aes_ctr_team(src, dst, len, aes_swap64(j0.lo), lo, schedule, rounds, lane, 1);
}

#endif
