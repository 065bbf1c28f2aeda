/* Scatter, per-thread part: many extents from one staging buffer to their places.
 *
 * A group is made of teams of 32 threads. A small extent is copied by one team, so that eight of
 * them are in flight in a group; a large one by the whole group, so that it does not hold one team
 * up. Groups stride over the extents in batches of one extent a team: any grid size is right.
 *
 * Base pointers are multiples of 16; offsets and lengths are anything. Nothing outside an extent is
 * read or written, not even inside the same machine word.
 */
#ifndef BIFOLIO_SCATTER_H
#define BIFOLIO_SCATTER_H

#include "kdef.h"

#define SCATTER_GROUP_SIZE 256u
#define SCATTER_TEAM_SIZE 32u
#define SCATTER_TEAMS (SCATTER_GROUP_SIZE / SCATTER_TEAM_SIZE)
/* From this length on the whole group copies an extent: one step of 16 bytes for each thread. */
#define SCATTER_LARGE_BYTES 4096u

typedef struct {
    u64 src; /* offset in the staging buffer */
    u64 dst; /* offset in the destination */
    u64 len; /* bytes */
} ScatterExtent;

typedef struct {
    u64 count;          /* number of extents */
    u64 staging_at;     /* added to every `src` */
    u64 destination_at; /* added to every `dst` */
} ScatterParams;

STATIC_ASSERT(sizeof(ScatterExtent) == 24, scatter_extent_matches_rust);
STATIC_ASSERT(sizeof(ScatterParams) == 24, scatter_params_match_rust);

/* Copies bytes `from..to` of an extent, one byte at a time. */
FN void scatter_bytes(GLOBAL const u8 *src, GLOBAL u8 *dst, u64 from, u64 to, u32 lane, u32 lanes)
{
    u64 i;
    for (i = from + lane; i < to; i += lanes) {
        dst[i] = src[i];
    }
}

/* An extent whose source and destination have the same place within 16 bytes. */
FN void scatter_aligned(GLOBAL const u8 *src, GLOBAL u8 *dst, u64 dst_at, u64 len, u32 lane, u32 lanes)
{
    u64 head = (16 - dst_at % 16) % 16;
    u64 words;
    u64 i;
    if (head > len) {
        head = len;
    }
    words = (len - head) / 16;
    scatter_bytes(src, dst, 0, head, lane, lanes);
    for (i = lane; i < words; i += lanes) {
        store16(dst + head + i * 16, load16(src + head + i * 16));
    }
    scatter_bytes(src, dst, head + words * 16, len, lane, lanes);
}

/* Any other extent: whole 8-byte words of the destination are put together from the two aligned
 * words of the source that hold their bytes. Only source words that lie inside the extent are read;
 * the few bytes at either end go one by one. */
FN void scatter_shifted(GLOBAL const u8 *src, u64 src_at, GLOBAL u8 *dst, u64 dst_at, u64 len, u32 lane, u32 lanes)
{
    u64 head = (8 - dst_at % 8) % 8;
    u64 skew; /* how far into a source word the bytes of a destination word begin */
    u64 words = 0;
    u64 i;
    skew = (src_at + head) % 8;
    if (head < skew) {
        head += 8; /* The first aligned source word would begin before the extent. */
    }
    if (head > len) {
        head = len;
    } else if (skew == 0) {
        words = (len - head) / 8;
    } else if (len - head + skew >= 16) {
        /* The last word pair ends at 8 * words + 8 after the first aligned word. */
        words = (len - head + skew) / 8 - 1;
    }
    scatter_bytes(src, dst, 0, head, lane, lanes);
    for (i = lane; i < words; i += lanes) {
        u64 at = head + i * 8;
        u64 word = load8(src + at - skew);
        if (skew != 0) {
            word = (word >> (skew * 8)) | (load8(src + at - skew + 8) << (64 - skew * 8));
        }
        store8(dst + at, word);
    }
    scatter_bytes(src, dst, head + words * 8, len, lane, lanes);
}

/* The part of one extent that thread `lane` of `lanes` copies. */
FN void scatter_extent(GLOBAL const u8 *staging, u64 src_at, GLOBAL u8 *destination, u64 dst_at, u64 len, u32 lane,
                       u32 lanes)
{
    if ((src_at ^ dst_at) % 16 == 0) {
        scatter_aligned(staging + src_at, destination + dst_at, dst_at, len, lane, lanes);
    } else {
        scatter_shifted(staging + src_at, src_at, destination + dst_at, dst_at, len, lane, lanes);
    }
}

/* All that one thread of the grid copies. */
FN void scatter_thread(GLOBAL const u8 *staging, GLOBAL const ScatterExtent *extents, GLOBAL u8 *destination,
                       u64 count, u64 staging_at, u64 destination_at, u32 group, u32 groups, u32 thread)
{
    u32 team = thread / SCATTER_TEAM_SIZE;
    u32 lane = thread % SCATTER_TEAM_SIZE;
    u64 first;
    for (first = (u64)group * SCATTER_TEAMS; first < count; first += (u64)groups * SCATTER_TEAMS) {
        u64 own = first + team;
        u64 e;
        if (own < count && extents[own].len < SCATTER_LARGE_BYTES) {
            scatter_extent(staging, staging_at + extents[own].src, destination, destination_at + extents[own].dst,
                           extents[own].len, lane, SCATTER_TEAM_SIZE);
        }
        for (e = first; e < first + SCATTER_TEAMS && e < count; e++) {
            if (extents[e].len >= SCATTER_LARGE_BYTES) {
                scatter_extent(staging, staging_at + extents[e].src, destination, destination_at + extents[e].dst,
                               extents[e].len, thread, SCATTER_GROUP_SIZE);
            }
        }
    }
}

#endif
