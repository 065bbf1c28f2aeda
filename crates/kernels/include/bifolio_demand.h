/* Demand mode: kernels that find out while they run which parts of a mapped file they need.
 *
 * A kernel is launched on a list of items. It asks for bytes of the file before it reads them. Where
 * a page is not there, the question is recorded, and the item stays unfinished. The host fills the
 * pages that were asked for and launches the kernel again on the items that are left, until none is.
 *
 *   extern "C" __global__ void look_up(bifolio_demand *demand, const unsigned char *file, ...)
 *   {
 *       unsigned int slot = blockIdx.x * blockDim.x + threadIdx.x;
 *       if (slot >= bifolio_demand_items(demand)) return;
 *       unsigned int item = bifolio_demand_item(demand, slot);
 *       const unsigned char *bytes = bifolio_demand_get(demand, file, place_of(item), 100);
 *       if (!bytes) return;                      // recorded: this item comes again
 *       ...                                      // use the bytes, store the item's result
 *       bifolio_demand_finish(demand, slot);
 *   }
 *
 * Rules:
 * - The host passes two addresses: the table (`demand`), and the first byte of the mapping (`file`).
 * - Bytes are read only after a question for them was answered in the same launch: a page that was
 *   there in one launch may be gone in the next.
 * - An item is run anew from its beginning whenever it is launched. What it stores before it is
 *   finished, it stores again; an item that adds to something does so only where it finishes.
 * - Asking for several things before giving up saves launches: `bifolio_demand_want` asks and reads
 *   nothing.
 * - When a group of threads works on one item, the threads agree (in group memory, with a barrier)
 *   on whether something was missing before one of them finishes it.
 * - Offsets count from the beginning of the mapping. A question beyond its end is recorded as an
 *   error, which ends the session on the host: nothing faults.
 *
 * The header is read by CUDA C++, by OpenCL C 1.2 and by native C and C++, and includes nothing.
 */
#ifndef BIFOLIO_DEMAND_H
#define BIFOLIO_DEMAND_H

#if defined(__OPENCL_VERSION__)

#define BIFOLIO_DEMAND_FN static inline
#define BIFOLIO_DEMAND_GLOBAL __global
typedef uint bifolio_demand_u32;
typedef ulong bifolio_demand_u64;

#else

#if defined(__CUDACC__)
#define BIFOLIO_DEMAND_FN static __device__ __forceinline__
#else
#define BIFOLIO_DEMAND_FN static inline
#endif
#define BIFOLIO_DEMAND_GLOBAL
typedef unsigned int bifolio_demand_u32;
typedef unsigned long long bifolio_demand_u64;

#endif

/* What follows the table's head in the same buffer, at the places that it names: a byte for each
 * page, a byte for each slot of the list (1: finished), and the list, an u32 for each slot. Only the
 * functions below know it. */
typedef struct bifolio_demand {
    bifolio_demand_u64 length;     /* bytes of the mapping */
    bifolio_demand_u64 skew;       /* bytes of its first page that lie before it */
    bifolio_demand_u64 pages_at;   /* bytes from here to the pages' */
    bifolio_demand_u64 done_at;    /* to the slots' */
    bifolio_demand_u64 items_at;   /* to the list */
    bifolio_demand_u32 page_shift; /* a page has 2^page_shift bytes */
    bifolio_demand_u32 items;      /* slots in this launch */
    bifolio_demand_u64 bad_offset; /* what, by the first who did */
    bifolio_demand_u64 bad_length;
    bifolio_demand_u32 bad;        /* 1: something beyond the mapping was asked for */
    bifolio_demand_u32 reserved;
} bifolio_demand;

/* Array sizes are asserted in this way, as OpenCL C 1.2 and C99 have no static assertion. */
typedef char bifolio_demand_matches_rust[sizeof(bifolio_demand) == 72 ? 1 : -1];

/* Bits of a page's byte. The host sets the first; whoever asks sets the second, whether or not the
 * page is there. All threads store the same value, so that no atomic is needed. */
#define BIFOLIO_DEMAND_THERE 1
#define BIFOLIO_DEMAND_ASKED 2

/* The number of slots in this launch's list. */
BIFOLIO_DEMAND_FN bifolio_demand_u32 bifolio_demand_items(BIFOLIO_DEMAND_GLOBAL const bifolio_demand *demand)
{
    return demand->items;
}

/* The item in a slot, which is less than `bifolio_demand_items`. */
BIFOLIO_DEMAND_FN bifolio_demand_u32 bifolio_demand_item(BIFOLIO_DEMAND_GLOBAL const bifolio_demand *demand,
                                                         bifolio_demand_u32 slot)
{
    BIFOLIO_DEMAND_GLOBAL const unsigned char *table = (BIFOLIO_DEMAND_GLOBAL const unsigned char *)demand;
    return ((BIFOLIO_DEMAND_GLOBAL const bifolio_demand_u32 *)(table + demand->items_at))[slot];
}

/* The item in a slot needs no further launch. */
BIFOLIO_DEMAND_FN void bifolio_demand_finish(BIFOLIO_DEMAND_GLOBAL bifolio_demand *demand, bifolio_demand_u32 slot)
{
    ((BIFOLIO_DEMAND_GLOBAL unsigned char *)demand)[demand->done_at + slot] = 1;
}

/* Keeps the first question beyond the mapping, whole. */
BIFOLIO_DEMAND_FN void bifolio_demand_note_bad(BIFOLIO_DEMAND_GLOBAL bifolio_demand *demand, bifolio_demand_u64 offset,
                                               bifolio_demand_u64 length)
{
#if defined(__CUDACC__)
    bifolio_demand_u32 before = atomicCAS(&demand->bad, 0u, 1u);
#elif defined(__OPENCL_VERSION__)
    bifolio_demand_u32 before = atomic_cmpxchg((volatile __global uint *)&demand->bad, 0u, 1u);
#else
    bifolio_demand_u32 before = __sync_val_compare_and_swap(&demand->bad, 0u, 1u);
#endif
    if (before == 0) {
        demand->bad_offset = offset;
        demand->bad_length = length;
    }
}

/* Asks for a page; whether it is there. */
BIFOLIO_DEMAND_FN int bifolio_demand_page(BIFOLIO_DEMAND_GLOBAL unsigned char *page)
{
#if defined(__CUDACC__) || defined(__OPENCL_VERSION__)
    unsigned char state = *page;
    if (!(state & BIFOLIO_DEMAND_ASKED)) {
        *page = (unsigned char)(state | BIFOLIO_DEMAND_ASKED);
    }
#else
    unsigned char state = __atomic_load_n(page, __ATOMIC_RELAXED);
    if (!(state & BIFOLIO_DEMAND_ASKED)) {
        __atomic_store_n(page, (unsigned char)(state | BIFOLIO_DEMAND_ASKED), __ATOMIC_RELAXED);
    }
#endif
    return state & BIFOLIO_DEMAND_THERE;
}

/* Asks for bytes of the file: 1 if all of them are there, and stay until the kernel ends; else 0. */
BIFOLIO_DEMAND_FN int bifolio_demand_want(BIFOLIO_DEMAND_GLOBAL bifolio_demand *demand, bifolio_demand_u64 offset,
                                          bifolio_demand_u64 length)
{
    BIFOLIO_DEMAND_GLOBAL unsigned char *pages = (BIFOLIO_DEMAND_GLOBAL unsigned char *)demand + demand->pages_at;
    bifolio_demand_u64 page, last;
    int there = 1;
    if (offset > demand->length || length > demand->length - offset) {
        bifolio_demand_note_bad(demand, offset, length);
        return 0;
    }
    if (length == 0) {
        return 1;
    }
    page = (demand->skew + offset) >> demand->page_shift;
    last = (demand->skew + offset + length - 1) >> demand->page_shift;
    for (; page <= last; page++) {
        there &= bifolio_demand_page(pages + page);
    }
    return there;
}

/* The same; the address of the bytes, or 0. `file` is the first byte of the mapping. */
BIFOLIO_DEMAND_FN BIFOLIO_DEMAND_GLOBAL const unsigned char *
bifolio_demand_get(BIFOLIO_DEMAND_GLOBAL bifolio_demand *demand, BIFOLIO_DEMAND_GLOBAL const unsigned char *file,
                   bifolio_demand_u64 offset, bifolio_demand_u64 length)
{
    return bifolio_demand_want(demand, offset, length) ? file + offset : (BIFOLIO_DEMAND_GLOBAL const unsigned char *)0;
}

#endif
