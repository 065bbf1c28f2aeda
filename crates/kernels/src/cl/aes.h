/* AES, per-thread part: a thread computes eight blocks at once.
 *
 * The eight blocks are 32 words in registers, "sliced": word 8 * r + b holds bit b of the bytes in
 * row r, of which block k's byte in column c is bit 8 * c + k. SubBytes is a circuit of word
 * operations, ShiftRows turns words by whole bytes, and MixColumns adds words of other rows. Nothing
 * is looked up in memory with an index that depends on data and nothing branches on data: on every
 * device, time and addresses tell nothing about keys and contents.
 *
 * That is why this was chosen over tables in group memory, one copy for each bank, which is about as
 * fast on GPUs but leaks through the caches of a device without such banks. Eight blocks a thread
 * rather than the 32 of plain bit-slicing leave registers for enough threads; what the rotations
 * cost is saved in the transpositions.
 *
 * Round keys come sliced as well, AES_KEY_WORDS words for each, all columns' bytes 0 or 0xff. They are
 * added right behind the S-boxes, into which half of the additions disappear, so that those for
 * encryption have gone through InvMixColumns and InvShiftRows, and those for decryption through
 * ShiftRows; the key that is added before the first round is as it is.
 */
#ifndef BIFOLIO_AES_H
#define BIFOLIO_AES_H

#include "aes_sbox.h"

#define AES_BLOCKS 8u
#define AES_KEY_WORDS 32u
/* For the 14 rounds of AES-256. */
#define AES_SCHEDULE_WORDS (15u * AES_KEY_WORDS)

/* Bits of `a` where the constant mask is 1, of `b` elsewhere. */
#define AES_SELECT(mask, a, b) LOGIC3(mask, a, b, 0xca, ((a) & (mask)) | ((b) & ~(mask)))

FN void aes_swap_bits(PRIVATE u32 *a, PRIVATE u32 *b, u32 mask, u32 shift)
{
    u32 low = AES_SELECT(mask, *a, *b << shift);
    *b = AES_SELECT(mask, *a >> shift, *b);
    *a = low;
}

/* Turns eight words of which each byte column is an 8 x 8 matrix of bits: word k bit b <-> word b bit k. */
FN void aes_transpose_bits(PRIVATE u32 *s)
{
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        aes_swap_bits(&s[i], &s[i + 4], 0x0f0f0f0fu, 4);
    }
    UNROLL
    for (i = 0; i < 4; i++) {
        u32 first = i / 2 * 4 + i % 2;
        aes_swap_bits(&s[first], &s[first + 2], 0x33333333u, 2);
    }
    UNROLL
    for (i = 0; i < 4; i++) {
        aes_swap_bits(&s[i * 2], &s[i * 2 + 1], 0x55555555u, 1);
    }
}

/* Turns four words as a 4 x 4 matrix of bytes; its own inverse. */
FN void aes_transpose_bytes(PRIVATE u32 *w0, PRIVATE u32 *w1, PRIVATE u32 *w2, PRIVATE u32 *w3)
{
    u32 a = permute4(*w0, *w2, 0x5410);
    u32 b = permute4(*w1, *w3, 0x5410);
    u32 c = permute4(*w0, *w2, 0x7632);
    u32 d = permute4(*w1, *w3, 0x7632);
    *w0 = permute4(a, b, 0x6240);
    *w1 = permute4(a, b, 0x7351);
    *w2 = permute4(c, d, 0x6240);
    *w3 = permute4(c, d, 0x7351);
}

/* Puts block `k`, as it lies in memory, into its place before `aes_slice`. */
FN void aes_put(PRIVATE u32 *s, u32 k, u64 lo, u64 hi)
{
    s[k] = (u32)lo;
    s[8 + k] = (u32)(lo >> 32);
    s[16 + k] = (u32)hi;
    s[24 + k] = (u32)(hi >> 32);
}

FN u64 aes_lo(PRIVATE const u32 *s, u32 k) { return s[k] | (u64)s[8 + k] << 32; }
FN u64 aes_hi(PRIVATE const u32 *s, u32 k) { return s[16 + k] | (u64)s[24 + k] << 32; }

/* Slices eight blocks that were put. */
FN void aes_slice(PRIVATE u32 *s)
{
    u32 k;
    u32 row;
    UNROLL
    for (k = 0; k < 8; k++) {
        aes_transpose_bytes(&s[k], &s[8 + k], &s[16 + k], &s[24 + k]);
    }
    UNROLL
    for (row = 0; row < 4; row++) {
        aes_transpose_bits(s + row * 8);
    }
}

/* The way back, for `aes_lo` and `aes_hi`. */
FN void aes_unslice(PRIVATE u32 *s)
{
    u32 k;
    u32 row;
    UNROLL
    for (row = 0; row < 4; row++) {
        aes_transpose_bits(s + row * 8);
    }
    UNROLL
    for (k = 0; k < 8; k++) {
        aes_transpose_bytes(&s[k], &s[8 + k], &s[16 + k], &s[24 + k]);
    }
}

FN void aes_add_key(PRIVATE u32 *s, LOCAL const u32 *key)
{
    u32 i;
    UNROLL
    for (i = 0; i < 32; i++) {
        s[i] ^= key[i];
    }
}

FN void aes_turn_row(PRIVATE u32 *row, u32 selector)
{
    u32 b;
    UNROLL
    for (b = 0; b < 8; b++) {
        row[b] = permute4(row[b], row[b], selector);
    }
}

/* SubBytes, the round key and ShiftRows. */
FN void aes_substitute(PRIVATE u32 *s, LOCAL const u32 *key)
{
    aes_sub_bytes(s, key);
    aes_sub_bytes(s + 8, key + 8);
    aes_turn_row(s + 8, 0x0321);
    aes_sub_bytes(s + 16, key + 16);
    aes_turn_row(s + 16, 0x1032);
    aes_sub_bytes(s + 24, key + 24);
    aes_turn_row(s + 24, 0x2103);
}

FN void aes_inv_substitute(PRIVATE u32 *s, LOCAL const u32 *key)
{
    aes_inv_sub_bytes(s, key);
    aes_inv_sub_bytes(s + 8, key + 8);
    aes_turn_row(s + 8, 0x2103);
    aes_inv_sub_bytes(s + 16, key + 16);
    aes_turn_row(s + 16, 0x1032);
    aes_inv_sub_bytes(s + 24, key + 24);
    aes_turn_row(s + 24, 0x0321);
}

/* MixColumns. With d = row r + row r+1, row r becomes 2 d + row r+1 + (row r+2 + row r+3). */
FN void aes_mix(PRIVATE u32 *s)
{
    u32 d[32];
    u32 mixed[32];
    u32 i;
    UNROLL
    for (i = 0; i < 32; i++) {
        d[i] = s[i] ^ s[(i + 8) % 32];
    }
    UNROLL
    for (i = 0; i < 32; i++) {
        u32 b = i % 8;
        u32 top = d[i - b + 7];
        u32 doubled = b == 0 ? top : d[i - b + (b + 7) % 8];
        u32 sum = XOR3(doubled, s[(i + 8) % 32], d[(i + 16) % 32]);
        mixed[i] = b == 1 || b == 3 || b == 4 ? sum ^ top : sum;
    }
    UNROLL
    for (i = 0; i < 32; i++) {
        s[i] = mixed[i];
    }
}

/* Adds 4 (a + b) to both rows: what InvMixColumns does beside MixColumns. */
FN void aes_add_fourfold(PRIVATE u32 *a, PRIVATE u32 *b)
{
    u32 d[8];
    u32 both;
    u32 i;
    UNROLL
    for (i = 0; i < 8; i++) {
        d[i] = a[i] ^ b[i];
    }
    both = d[6] ^ d[7];
    a[0] ^= d[6];
    b[0] ^= d[6];
    a[1] ^= both;
    b[1] ^= both;
    a[2] = XOR3(a[2], d[0], d[7]);
    b[2] = XOR3(b[2], d[0], d[7]);
    a[3] = XOR3(a[3], d[1], d[6]);
    b[3] = XOR3(b[3], d[1], d[6]);
    a[4] = XOR3(a[4], d[2], both);
    b[4] = XOR3(b[4], d[2], both);
    a[5] = XOR3(a[5], d[3], d[7]);
    b[5] = XOR3(b[5], d[3], d[7]);
    a[6] ^= d[4];
    b[6] ^= d[4];
    a[7] ^= d[5];
    b[7] ^= d[5];
}

/* Encrypts eight sliced blocks in `rounds` rounds, 10, 12 or 14. */
FN void aes_encrypt(PRIVATE u32 *s, LOCAL const u32 *schedule, u32 rounds)
{
    u32 round;
    aes_add_key(s, schedule);
    NO_UNROLL
    for (round = 1; round < rounds; round++) {
        aes_substitute(s, schedule + round * AES_KEY_WORDS);
        aes_mix(s);
    }
    aes_substitute(s, schedule + rounds * AES_KEY_WORDS);
}

/* The inverse; the schedule is the one for decryption, in the order of encryption. */
FN void aes_decrypt(PRIVATE u32 *s, LOCAL const u32 *schedule, u32 rounds)
{
    u32 round;
    aes_add_key(s, schedule + rounds * AES_KEY_WORDS);
    NO_UNROLL
    for (round = rounds - 1; round > 0; round--) {
        aes_inv_substitute(s, schedule + round * AES_KEY_WORDS);
        aes_add_fourfold(s, s + 16);
        aes_add_fourfold(s + 8, s + 24);
        aes_mix(s);
    }
    aes_inv_substitute(s, schedule);
}

/* Thread `thread` of `threads` copies its part of a schedule of `rounds` + 1 keys to group memory. */
FN void aes_fetch_schedule(LOCAL u32 *schedule, GLOBAL const u32 *keys, u32 rounds, u32 thread, u32 threads)
{
    u32 i;
    for (i = thread; i < (rounds + 1) * AES_KEY_WORDS; i += threads) {
        schedule[i] = keys[i];
    }
}

#endif
