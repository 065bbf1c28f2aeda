/* SHA-256: one thread for each block; `digests` gets 32 bytes for each, at a 16-byte boundary. */
#include "sha256.h"

KERNEL void sha256(GLOBAL const u8 *base, GLOBAL const Sha256Block *blocks, GLOBAL u8 *digests,
                   const Sha256Params params)
{
    u64 own = (u64)group_index() * SHA256_GROUP_SIZE + thread_in_group();
    if (own < params.count) {
        sha256_thread(base + (params.blocks_at + blocks[own].at), blocks[own].len, digests + own * 32);
    }
}
