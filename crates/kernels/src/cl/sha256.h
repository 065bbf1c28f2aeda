/* SHA-256 of many blocks of memory, per-thread part: one thread for each.
 *
 * A digest is one long chain, so that the device is full only with tens of thousands of blocks.
 * Blocks begin at 16-byte boundaries and may have any length.
 */
#ifndef BIFOLIO_SHA256_H
#define BIFOLIO_SHA256_H

#include "kdef.h"

#define SHA256_GROUP_SIZE 128u

typedef struct {
    u64 at;  /* place of the block */
    u64 len; /* bytes */
} Sha256Block;

typedef struct {
    u64 blocks_at; /* added to every place */
    u64 count;
} Sha256Params;

STATIC_ASSERT(sizeof(Sha256Block) == 16, sha256_block_matches_rust);
STATIC_ASSERT(sizeof(Sha256Params) == 16, sha256_params_match_rust);

/* FIPS 180-4, 4.2.2 and 5.3.3: the first bits of the fractions of primes' cube and square roots. */
CONSTANT_TABLE u32 sha256_constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};
CONSTANT_TABLE u32 sha256_start[8] = {
    0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

FN u32 sha256_turn(u32 word, u32 bits) { return shift_in(word, word, 32 - bits); }
FN u32 sha256_swap(u32 word) { return permute4(word, word, 0x0123); }

/* One step of the function; `state` is a to h, `w` a constant plus a word of the schedule. */
FN void sha256_step(PRIVATE u32 *state, u32 w)
{
    u32 e = state[4];
    u32 a = state[0];
    u32 choice = LOGIC3(e, state[5], state[6], 0xca, (e & state[5]) | (~e & state[6]));
    u32 majority = LOGIC3(a, state[1], state[2], 0xe8, (a & (state[1] | state[2])) | (state[1] & state[2]));
    u32 first = state[7] + XOR3(sha256_turn(e, 6), sha256_turn(e, 11), sha256_turn(e, 25)) + choice + w;
    u32 second = XOR3(sha256_turn(a, 2), sha256_turn(a, 13), sha256_turn(a, 22)) + majority;
    u32 i;
    UNROLL
    for (i = 7; i > 0; i--) {
        state[i] = state[i - 1];
    }
    state[4] += first;
    state[0] = first + second;
}

/* Takes in 64 bytes, whose words are in `w`; `w` is used up. */
FN void sha256_compress(PRIVATE u32 *hash, PRIVATE u32 *w)
{
    u32 state[8];
    u32 round;
    u32 i;
    UNROLL
    for (i = 0; i < 8; i++) {
        state[i] = hash[i];
    }
    NO_UNROLL
    for (round = 0; round < 64; round += 16) {
        UNROLL
        for (i = 0; i < 16; i++) {
            u32 before = w[(i + 1) % 16];
            u32 late = w[(i + 14) % 16];
            sha256_step(state, w[i] + sha256_constants[round + i]);
            w[i] += XOR3(sha256_turn(before, 7), sha256_turn(before, 18), before >> 3) + w[(i + 9) % 16] +
                    XOR3(sha256_turn(late, 17), sha256_turn(late, 19), late >> 10);
        }
    }
    UNROLL
    for (i = 0; i < 8; i++) {
        hash[i] += state[i];
    }
}

/* The 16 bytes at `at` of the padded message of `len` bytes: its own, then 0x80, zeros, and at the very
 * end its length in bits. `last` says whether the end is within these 64 bytes. */
FN void sha256_padded(PRIVATE Word16 *word, GLOBAL const u8 *block, u64 len, u64 at, u32 last)
{
    u32 i;
    word->lo = 0;
    word->hi = 0;
    for (i = 0; i < 16 && at + i <= len; i++) {
        u64 byte = at + i < len ? block[at + i] : 0x80;
        if (i < 8) {
            word->lo |= byte << (i * 8);
        } else {
            word->hi |= byte << (i * 8 - 64);
        }
    }
    if (last && at % 64 == 48) {
        word->hi = sha256_swap((u32)(len >> 29)) | (u64)sha256_swap((u32)(len << 3)) << 32;
    }
}

/* Writes the digest of one block. */
FN void sha256_thread(GLOBAL const u8 *block, u64 len, GLOBAL u8 *digest)
{
    u32 hash[8];
    u64 end = (len + 9 + 63) / 64 * 64;
    u64 at;
    u32 i;
    Word16 pair;
    UNROLL
    for (i = 0; i < 8; i++) {
        hash[i] = sha256_start[i];
    }
    NO_UNROLL
    for (at = 0; at < end; at += 64) {
        u32 w[16];
        UNROLL
        for (i = 0; i < 4; i++) {
            Word16 word;
            if (at + i * 16 + 16 <= len) {
                word = load16(block + at + i * 16);
            } else {
                sha256_padded(&word, block, len, at + i * 16, at + 64 == end);
            }
            w[i * 4] = sha256_swap((u32)word.lo);
            w[i * 4 + 1] = sha256_swap((u32)(word.lo >> 32));
            w[i * 4 + 2] = sha256_swap((u32)word.hi);
            w[i * 4 + 3] = sha256_swap((u32)(word.hi >> 32));
        }
        sha256_compress(hash, w);
    }
    UNROLL
    for (i = 0; i < 8; i += 4) {
        pair.lo = sha256_swap(hash[i]) | (u64)sha256_swap(hash[i + 1]) << 32;
        pair.hi = sha256_swap(hash[i + 2]) | (u64)sha256_swap(hash[i + 3]) << 32;
        store16(digest + i * 4, pair);
    }
}

#endif
