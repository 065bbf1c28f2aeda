/* AES-XTS over many sectors, per-thread part.
 *
 * A first kernel encrypts the sectors' numbers, 16 bytes for each, eight in a thread. The second one
 * takes 512 bytes with four threads: thread j the blocks j, j + 4, ..., so that neighbours touch
 * neighbouring bytes and no unit of four threads straddles two sectors. A block's tweak is the
 * sector's times x^n in GF(2^128) for block n, which is reached by shifts.
 */
#ifndef BIFOLIO_AES_XTS_H
#define BIFOLIO_AES_XTS_H

#include "aes.h"

#define AES_XTS_GROUP_SIZE 256u
#define AES_XTS_UNIT_BYTES 512u
#define AES_XTS_UNIT_THREADS 4u

typedef struct {
    u64 src_at;           /* added to the source */
    u64 dst_at;           /* added to the destination */
    u64 tweaks_at;        /* added to the tweaks */
    u64 sectors;
    u64 first_iv;         /* number of the first sector */
    u32 iv_step;          /* difference between the numbers of neighbours */
    u32 units_per_sector; /* of 512 bytes each; a power of two */
    u32 rounds;           /* 10 or 14 */
    u32 reserved;
} AesXtsParams;

STATIC_ASSERT(sizeof(AesXtsParams) == 56, aes_xts_params_match_rust);

/* A tweak is four words, the least significant first. Times x^shift, 1 <= shift <= 24. */
FN void aes_xts_shift(PRIVATE u32 *t, u32 shift)
{
    u32 over = t[3] >> (32 - shift);
    t[3] = shift_in(t[3], t[2], shift);
    t[2] = shift_in(t[2], t[1], shift);
    t[1] = shift_in(t[1], t[0], shift);
    t[0] = t[0] << shift ^ over ^ over << 1 ^ over << 2 ^ over << 7;
}

/* Times x^32. */
FN void aes_xts_shift_word(PRIVATE u32 *t)
{
    u32 over = t[3];
    t[3] = t[2];
    t[2] = t[1];
    t[1] = t[0] ^ over >> 31 ^ over >> 30 ^ over >> 25;
    t[0] = over ^ over << 1 ^ over << 2 ^ over << 7;
}

/* The tweak of the first block that thread `lane` takes of unit `unit`. */
FN void aes_xts_first_tweak(PRIVATE u32 *t, GLOBAL const u8 *tweaks, u64 unit, u32 units_per_sector, u32 lane)
{
    u64 sector = unit / units_per_sector;
    Word16 base = load16(tweaks + sector * 16);
    u32 i;
    t[0] = (u32)base.lo;
    t[1] = (u32)(base.lo >> 32);
    t[2] = (u32)base.hi;
    t[3] = (u32)(base.hi >> 32);
    for (i = (u32)(unit - sector * units_per_sector); i > 0; i--) {
        aes_xts_shift_word(t);
    }
    for (i = lane; i > 0; i--) {
        aes_xts_shift(t, 1);
    }
}

/* Adds the tweaks to eight blocks. */
FN void aes_xts_add_tweaks(PRIVATE u32 *s, PRIVATE const u32 *first)
{
    u32 t[4];
    u32 k;
    UNROLL
    for (k = 0; k < 4; k++) {
        t[k] = first[k];
    }
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        s[k] ^= t[0];
        s[8 + k] ^= t[1];
        s[16 + k] ^= t[2];
        s[24 + k] ^= t[3];
        aes_xts_shift(t, AES_XTS_UNIT_THREADS);
    }
}

/* What thread `thread` of the grid encrypts or decrypts, the latter if `inverse`, a constant. */
FN void aes_xts_thread(GLOBAL const u8 *src, GLOBAL u8 *dst, GLOBAL const u8 *tweaks, LOCAL const u32 *schedule,
                       u64 sectors, u32 units_per_sector, u32 rounds, u64 thread, u32 inverse)
{
    u64 unit = thread / AES_XTS_UNIT_THREADS;
    u32 lane = (u32)(thread % AES_XTS_UNIT_THREADS);
    u64 at = unit * AES_XTS_UNIT_BYTES + lane * 16;
    u32 tweak[4];
    u32 s[32];
    u32 k;
    if (unit >= sectors * units_per_sector) {
        return;
    }
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        Word16 block = load16(src + at + k * (AES_XTS_UNIT_THREADS * 16));
        aes_put(s, k, block.lo, block.hi);
    }
    aes_xts_first_tweak(tweak, tweaks, unit, units_per_sector, lane);
    aes_xts_add_tweaks(s, tweak);
    aes_slice(s);
    if (inverse) {
        aes_decrypt(s, schedule, rounds);
    } else {
        aes_encrypt(s, schedule, rounds);
    }
    aes_unslice(s);
    aes_xts_add_tweaks(s, tweak);
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        Word16 block;
        block.lo = aes_lo(s, k);
        block.hi = aes_hi(s, k);
        store16(dst + at + k * (AES_XTS_UNIT_THREADS * 16), block);
    }
}

/* The tweaks of the eight sectors of thread `thread` of the grid. */
FN void aes_xts_tweaks_thread(GLOBAL u8 *tweaks, LOCAL const u32 *schedule, u64 sectors, u64 first_iv, u32 iv_step,
                              u32 rounds, u64 thread)
{
    u64 first = thread * AES_BLOCKS;
    u32 s[32];
    u32 k;
    if (first >= sectors) {
        return;
    }
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        aes_put(s, k, first_iv + (first + k) * iv_step, 0);
    }
    aes_slice(s);
    aes_encrypt(s, schedule, rounds);
    aes_unslice(s);
    UNROLL
    for (k = 0; k < AES_BLOCKS; k++) {
        if (first + k < sectors) {
            Word16 tweak;
            tweak.lo = aes_lo(s, k);
            tweak.hi = aes_hi(s, k);
            store16(tweaks + (first + k) * 16, tweak);
        }
    }
}

#endif
