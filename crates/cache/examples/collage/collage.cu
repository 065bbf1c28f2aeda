/* The collage on a GPU: one group of threads for each block of the input. The same twice, by way of the
 * table of demand mode, and with everything in memory. */
#include "bifolio_demand.h"

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 128u
#define LANES 32u
#define CHANNELS 3u
#define BINS 64u
#define PIXEL_BYTES 3072u
#define RECORD_BYTES 4096ull
#define PIXELS_AT 512u
#define NOBODY (~0ull)

struct Params {
    u32 bits;  /* of a mean colour, for each channel */
    u32 limit; /* a distance beyond which a second bucket is searched */
};

/* The bucket of a mean colour: its bits, those of the channels in turn. */
static __device__ u32 bucket_of(const u32 *sums, u32 bits)
{
    u32 bucket = 0;
    for (u32 bit = 0; bit < bits; bit++) {
        for (u32 channel = 0; channel < CHANNELS; channel++) {
            u32 mean = sums[channel] / (PIXEL_BYTES / CHANNELS);
            bucket = bucket << 1 | (mean >> (7 - bit) & 1);
        }
    }
    return bucket;
}

template <bool DEMAND>
static __device__ void collage(bifolio_demand *demand, const u8 *file, const u32 *first, const u8 *blocks, u64 *best,
                               u8 *output, Params params)
{
    __shared__ u32 histogram[CHANNELS * BINS];
    __shared__ u32 sums[CHANNELS];
    __shared__ u64 winner;
    __shared__ u32 missing;
    u32 slot = blockIdx.x;
    u32 item = DEMAND ? bifolio_demand_item(demand, slot) : slot;
    const u8 *block = blocks + (u64)item * PIXEL_BYTES;

    for (u32 i = threadIdx.x; i < CHANNELS * BINS; i += THREADS) {
        histogram[i] = 0;
    }
    if (threadIdx.x < CHANNELS) {
        sums[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        winner = NOBODY;
        missing = 0;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < PIXEL_BYTES; i += THREADS) {
        atomicAdd(&histogram[i % CHANNELS * BINS + block[i] / 4], 1u);
        atomicAdd(&sums[i % CHANNELS], (u32)block[i]);
    }
    __syncthreads();
    u32 bucket = bucket_of(sums, params.bits);
    for (u32 probe = 0; probe < 2; probe++) {
        for (u32 tile = first[bucket] + threadIdx.x / LANES; tile < first[bucket + 1]; tile += THREADS / LANES) {
            const u8 *record = file + tile * RECORD_BYTES;
            if (DEMAND && !bifolio_demand_want(demand, tile * RECORD_BYTES, RECORD_BYTES)) {
                missing = 1; /* and go on: what else is missing comes by the same filling */
                continue;
            }
            u32 distance = 0;
            for (u32 word = threadIdx.x % LANES; word < CHANNELS * BINS / 2; word += LANES) {
                u32 both = ((const u32 *)record)[word];
                int low = (int)(both & 0xffff) - (int)histogram[2 * word];
                int high = (int)(both >> 16) - (int)histogram[2 * word + 1];
                distance += (low < 0 ? -low : low) + (high < 0 ? -high : high);
            }
            for (u32 step = LANES / 2; step > 0; step /= 2) {
                distance += __shfl_down_sync(~0u, distance, step);
            }
            if (threadIdx.x % LANES == 0) {
                atomicMin(&winner, (u64)distance << 32 | tile);
            }
        }
        __syncthreads();
        bool enough = missing || winner >> 32 <= params.limit;
        __syncthreads(); /* Everybody has looked before anybody changes it. */
        if (enough) {
            break;
        }
        bucket ^= 1;
    }
    if (missing) {
        return; /* recorded: this block comes again */
    }
    u32 tile = (u32)winner;
    for (u32 i = threadIdx.x; i < PIXEL_BYTES; i += THREADS) {
        output[(u64)item * PIXEL_BYTES + i] = winner == NOBODY ? 0 : file[tile * RECORD_BYTES + PIXELS_AT + i];
    }
    if (threadIdx.x == 0) {
        best[item] = winner;
        if (DEMAND) {
            bifolio_demand_finish(demand, slot);
        }
    }
}

extern "C" __global__ void collage_demand(bifolio_demand *demand, const u8 *file, const u32 *first, const u8 *blocks,
                                          u64 *best, u8 *output, const Params params)
{
    collage<true>(demand, file, first, blocks, best, output, params);
}

extern "C" __global__ void collage_whole(const u8 *file, const u32 *first, const u8 *blocks, u64 *best, u8 *output,
                                         const Params params)
{
    collage<false>(0, file, first, blocks, best, output, params);
}
