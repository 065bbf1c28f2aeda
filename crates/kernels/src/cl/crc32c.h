/* CRC32C of many blocks of memory, per-thread part.
 *
 * The register is a polynomial of which the most significant bit is the last coefficient, and a CRC is
 * linear in the message. A team of 32 threads takes a block: thread l the 16 bytes at 16 * l and every
 * 512 bytes on, with one sum for each of the four words, moved on by 512 bytes from word to word
 * through tables in group memory. At the end every sum is moved to the end of the block by one product,
 * and the team adds up. The up to 15 last bytes go one by one.
 */
#ifndef BIFOLIO_CRC32C_H
#define BIFOLIO_CRC32C_H

#include "kdef.h"

#define CRC32C_GROUP_SIZE 256u
#define CRC32C_TEAM_SIZE 32u
#define CRC32C_TEAMS (CRC32C_GROUP_SIZE / CRC32C_TEAM_SIZE)
#define CRC32C_STEP_BYTES (CRC32C_TEAM_SIZE * 16u)
#define CRC32C_POLYNOMIAL 0x82f63b78u
#define CRC32C_TABLE_WORDS 1024u

typedef struct {
    u64 at;  /* place of the block, a multiple of 16 */
    u64 len; /* bytes */
} Crc32cBlock;

typedef struct {
    u64 blocks_at; /* added to every place */
    u64 count;
    u32 step[32];  /* every bit of a register, moved on by CRC32C_STEP_BYTES */
    u32 after[32]; /* the power of x that moves a register on by 16 bytes times the index */
} Crc32cParams;

STATIC_ASSERT(sizeof(Crc32cBlock) == 16, crc32c_block_matches_rust);
STATIC_ASSERT(sizeof(Crc32cParams) == 272, crc32c_params_match_rust);

/* Entry `index` of the tables: byte index / 256 of a register with value index % 256, moved on. */
FN u32 crc32c_entry(PRIVATE const u32 *step, u32 index)
{
    u32 entry = 0;
    u32 bit;
    UNROLL
    for (bit = 0; bit < 8; bit++) {
        entry ^= (index >> bit & 1) != 0 ? step[index / 256 * 8 + bit] : 0;
    }
    return entry;
}

FN u32 crc32c_step(u32 crc, LOCAL const u32 *table)
{
    return table[crc & 0xff] ^ table[256 + (crc >> 8 & 0xff)] ^ table[512 + (crc >> 16 & 0xff)] ^
           table[768 + (crc >> 24)];
}

/* Moves a register on by so many bits. */
FN u32 crc32c_bits(u32 crc, u32 bits)
{
    for (; bits > 0; bits--) {
        crc = crc >> 1 ^ ((crc & 1) != 0 ? CRC32C_POLYNOMIAL : 0);
    }
    return crc;
}

FN u32 crc32c_multiply(u32 a, u32 b)
{
    u32 product = 0;
    u32 i;
    for (i = 0; i < 32; i++) {
        product ^= (a >> 31) != 0 ? b : 0;
        a <<= 1;
        b = crc32c_bits(b, 1);
    }
    return product;
}

/* What thread `lane` adds to the register behind the last whole 16 bytes of a block; `after` is in
 * group memory. */
FN u32 crc32c_lane(GLOBAL const u8 *block, u64 len, LOCAL const u32 *table, LOCAL const u32 *after, u32 lane)
{
    u64 whole = len / 16 * 16;
    u64 at = (u64)lane * 16;
    u32 sums[4] = {0, 0, 0, 0};
    u32 crc = 0;
    u32 i;
    if (at >= whole) {
        return 0;
    }
    sums[0] = lane == 0 ? 0xffffffffu : 0;
    UNROLL8
    for (; at < whole; at += CRC32C_STEP_BYTES) {
        Word16 word = load16(block + at);
        UNROLL
        for (i = 0; i < 4; i++) {
            u64 two = i < 2 ? word.lo : word.hi;
            u32 four = i % 2 == 0 ? (u32)two : (u32)(two >> 32);
            /* The register before the first word holds what the CRC begins with. */
            sums[i] = (at < CRC32C_STEP_BYTES ? sums[i] : crc32c_step(sums[i], table)) ^ four;
        }
    }
    for (i = 0; i < 4; i++) {
        crc = crc32c_bits(crc ^ sums[i], 32);
    }
    /* `at` is one step behind the last 16 bytes. */
    return crc32c_multiply(crc, after[(whole + CRC32C_STEP_BYTES - 16 - at) / 16]);
}

/* The CRC of a block from the sum of what its threads found. */
FN u32 crc32c_finish(GLOBAL const u8 *block, u64 len, u32 sum)
{
    u64 at;
    u32 crc = len < 16 ? 0xffffffffu : sum;
    for (at = len / 16 * 16; at < len; at++) {
        crc = crc32c_bits(crc ^ block[at], 8);
    }
    return ~crc;
}

#endif
