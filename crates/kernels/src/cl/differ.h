/* Which bytes of two 8-byte words differ, by arithmetic on whole words and without branches. `x` is
 * the exclusive or of the two words. Byte 0 is the least significant, as on every GPU it is the
 * first in memory.
 */
#ifndef BIFOLIO_DIFFER_H
#define BIFOLIO_DIFFER_H

#include "kdef.h"

/* 0x80 in each byte of `x` that is not 0, and 0 in the others. Adding 0x7f to the low seven bits of
 * a byte carries into its own top bit and never further. */
FN u64 differ_tops(u64 x)
{
    u64 low = 0x7f7f7f7f7f7f7f7fUL;
    return (((x & low) + low) | x) & ~low;
}

/* 0xff in each byte of `x` that is not 0, and 0 in the others. */
FN u64 differ_mask(u64 x)
{
    u64 tops = differ_tops(x);
    return tops | (tops - (tops >> 7));
}

/* Bit b is set if byte b is marked in `tops`. The factor moves
 * bit 8 * b to bit 56 + b; no two products meet below or inside the top byte, so none carries. */
FN u32 differ_bits(u64 tops) { return (u32)(((tops >> 7) * 0x0102040810204080UL) >> 56); }

/* The number of marked bytes in `tops`. */
FN u32 differ_count(u64 tops) { return (u32)(((tops >> 7) * 0x0101010101010101UL) >> 56); }

#endif
