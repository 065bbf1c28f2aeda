/* One source, three compilers: CUDA C++ (NVRTC), OpenCL C 1.2 and native C++ (for the sanitisers).
 *
 * This is the only file that asks which compiler it is read by. It includes nothing, since NVRTC
 * has no standard headers.
 *
 *   u8 u16 u32 u64            fixed-width types
 *   KERNEL                    qualifier of a kernel
 *   FN                        qualifier of every other function
 *   GLOBAL LOCAL PRIVATE      address space of a pointer's target; written on every pointer parameter
 *   CONSTANT_TABLE            qualifier of a table of constants outside of functions
 *   LOCAL_VAR                 declares a variable of the group, at the top of a kernel
 *   group_index() ...         the place of a thread in its one-dimensional grid
 *   group_barrier()           every thread of the group reaches it; orders LOCAL memory
 *   group_fence()             likewise, orders GLOBAL memory too
 *   local_or(pointer, bits)   atomic or on a LOCAL u32
 *   local_add(pointer, term)  atomic sum on a LOCAL u32; local_min, local_max accordingly
 *   local_take(pointer, n)    atomic sum on a LOCAL u32; what it was
 *   local_swap(p, from, to)   atomic: a LOCAL u32 that is `from` becomes `to`; what it was
 *   global_swap(p, from, to)  atomic: a GLOBAL u32 that is `from` becomes `to`; what it was
 *   global_take(p, n)         atomic sum on a GLOBAL u32, global_lower(p, other) its minimum; what it was
 *   lowest_bit(bits)          the number of the lowest bit that is set; one is
 *   lowest_bit64(bits)        the same of a u64
 *   load16, store16           16 bytes at a 16-byte boundary; load8, store8 at an 8-byte boundary,
 *                             store2 at a 2-byte boundary
 *   load16_in_order           load16 of memory that is also written: it stays before a later store
 *                             that does not depend on it
 *   UNROLL8                   asks for the next loop to be unrolled eight times
 *   UNROLL NO_UNROLL          ask for the next loop to be unrolled altogether, or not at all
 *   LOGIC3(a, b, c, t, e)     a function of three u32, bit by bit: by its truth table t, which has
 *                             bit 4a + 2b + c, and by an equal expression e; compilers take one
 *   XOR3(a, b, c)             the sum of three words, one such function
 *   permute4(a, b, selector)  four bytes of the eight of a and b: digit i of the constant selector
 *                             names byte i of the result, 0 to 3 in a and 4 to 7 in b
 *   shift_in(hi, lo, bits)    hi moved left by 1 to 31 bits, those of lo behind it
 *   swap_bytes(word)          the other order of its four bytes
 *   STATIC_ASSERT(c, name)    a condition that is checked when the source is compiled
 *
 * Functions return no structs but write them through PRIVATE pointers: for such a function inlined
 * beside stores some compilers leave an intrinsic that Oclgrind does not know. The same goes for two
 * shifts and an or, hence `shift_in`.
 */
#ifndef BIFOLIO_KDEF_H
#define BIFOLIO_KDEF_H

#if defined(__CUDACC__)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__
#define FN static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define PRIVATE
#define CONSTANT_TABLE static __constant__ const
#define LOCAL_VAR __shared__
#define UNROLL8 _Pragma("unroll 8")
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define STATIC_ASSERT(condition, name) static_assert(condition, #name)

FN u32 group_index(void) { return blockIdx.x; }
FN u32 group_count(void) { return gridDim.x; }
FN u32 group_size(void) { return blockDim.x; }
FN u32 thread_in_group(void) { return threadIdx.x; }
FN void group_barrier(void) { __syncthreads(); }
FN void group_fence(void) { __syncthreads(); }
FN void local_or(u32 *target, u32 bits) { atomicOr(target, bits); }
FN void local_add(u32 *target, u32 term) { atomicAdd(target, term); }
FN void local_min(u32 *target, u32 other) { atomicMin(target, other); }
FN void local_max(u32 *target, u32 other) { atomicMax(target, other); }
FN u32 local_take(u32 *target, u32 count) { return atomicAdd(target, count); }
FN u32 local_swap(u32 *target, u32 from, u32 to) { return atomicCAS(target, from, to); }
FN u32 global_swap(u32 *target, u32 from, u32 to) { return atomicCAS(target, from, to); }
FN u32 global_take(u32 *target, u32 count) { return atomicAdd(target, count); }
FN u32 global_lower(u32 *target, u32 other) { return atomicMin(target, other); }
FN u32 lowest_bit(u32 bits) { return (u32)__ffs((int)bits) - 1; }
FN u32 permute4(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
FN u32 shift_in(u32 hi, u32 lo, u32 bits) { return __funnelshift_l(lo, hi, bits); }
FN u32 swap_bytes(u32 word) { return __byte_perm(word, 0, 0x0123); }
FN u32 lowest_bit64(u64 bits) { return (u32)__ffsll((long long)bits) - 1; }
/* The instruction by name: left to itself the compiler takes expressions apart that share a term. */
template <int table> FN u32 logic3(u32 a, u32 b, u32 c)
{
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(table));
    return result;
}
#define LOGIC3(a, b, c, table, expression) logic3<table>(a, b, c)

#elif defined(__OPENCL_VERSION__)

typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;

#define KERNEL __kernel
#define FN static inline
#define GLOBAL __global
#define LOCAL __local
#define PRIVATE __private
#define CONSTANT_TABLE __constant
#define LOCAL_VAR __local
#define UNROLL8 _Pragma("unroll 8")
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
/* OpenCL C 1.2 has no static assertion: an array of negative size does not compile. */
#define STATIC_ASSERT(condition, name) typedef char static_assert_##name[(condition) ? 1 : -1]

FN u32 group_index(void) { return (u32)get_group_id(0); }
FN u32 group_count(void) { return (u32)get_num_groups(0); }
FN u32 group_size(void) { return (u32)get_local_size(0); }
FN u32 thread_in_group(void) { return (u32)get_local_id(0); }
/* A macro, since some compilers refuse a barrier outside a kernel's own body. */
#define group_barrier() barrier(CLK_LOCAL_MEM_FENCE)
#define group_fence() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
FN void local_or(volatile LOCAL u32 *target, u32 bits) { atomic_or(target, bits); }
FN void local_add(volatile LOCAL u32 *target, u32 term) { atomic_add(target, term); }
FN void local_min(volatile LOCAL u32 *target, u32 other) { atomic_min(target, other); }
FN void local_max(volatile LOCAL u32 *target, u32 other) { atomic_max(target, other); }
FN u32 local_take(volatile LOCAL u32 *target, u32 count) { return atomic_add(target, count); }
FN u32 local_swap(volatile LOCAL u32 *target, u32 from, u32 to) { return atomic_cmpxchg(target, from, to); }
FN u32 global_swap(volatile GLOBAL u32 *target, u32 from, u32 to) { return atomic_cmpxchg(target, from, to); }
FN u32 global_take(volatile GLOBAL u32 *target, u32 count) { return atomic_add(target, count); }
FN u32 global_lower(volatile GLOBAL u32 *target, u32 other) { return atomic_min(target, other); }
FN u32 lowest_bit(u32 bits) { return 31u - clz(bits & (0u - bits)); }
#define LOGIC3(a, b, c, table, expression) (expression)
FN u32 shift_in(u32 hi, u32 lo, u32 bits) { return hi << bits | (rotate(lo, bits) & ((1u << bits) - 1)); }
FN u32 swap_bytes(u32 word) { return as_uint(as_uchar4(word).wzyx); }
FN u32 lowest_bit64(u64 bits) { return 63u - (u32)clz(bits & (0 - bits)); }

#else /* native C++: only the per-thread functions, no kernels */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FN static inline
#define GLOBAL
#define LOCAL
#define PRIVATE
#define CONSTANT_TABLE static const
#define UNROLL8
#define UNROLL
#define NO_UNROLL
#define STATIC_ASSERT(condition, name) static_assert(condition, #name)

/* By the truth table: OpenCL devices check the expression, the native tests what a GPU gets. */
FN u32 logic3(u32 a, u32 b, u32 c, u32 table)
{
    u32 result = 0;
    u32 term;
    for (term = 0; term < 8; term++) {
        u32 all = ((term & 4) != 0 ? a : ~a) & ((term & 2) != 0 ? b : ~b) & ((term & 1) != 0 ? c : ~c);
        result |= (table >> term & 1) != 0 ? all : 0;
    }
    return result;
}
#define LOGIC3(a, b, c, table, expression) logic3(a, b, c, table)
FN u32 local_swap(u32 *target, u32 from, u32 to)
{
    u32 found = *target;
    *target = found == from ? to : found;
    return found;
}
FN u32 global_swap(u32 *target, u32 from, u32 to) { return local_swap(target, from, to); }
FN void local_min(u32 *target, u32 other) { *target = other < *target ? other : *target; }
FN u32 local_take(u32 *target, u32 count)
{
    u32 found = *target;
    *target = found + count;
    return found;
}
FN u32 global_take(u32 *target, u32 count) { return local_take(target, count); }
FN u32 global_lower(u32 *target, u32 other)
{
    u32 found = *target;
    *target = other < found ? other : found;
    return found;
}
FN u32 lowest_bit(u32 bits) { return (u32)__builtin_ctz(bits); }
FN u32 shift_in(u32 hi, u32 lo, u32 bits) { return hi << bits | lo >> (32 - bits); }
FN u32 swap_bytes(u32 word) { return __builtin_bswap32(word); }
FN u32 lowest_bit64(u64 bits) { return (u32)__builtin_ctzll(bits); }

#endif

STATIC_ASSERT(sizeof(u8) == 1 && sizeof(u16) == 2, small_types_have_their_width);
STATIC_ASSERT(sizeof(u32) == 4 && sizeof(u64) == 8, wide_types_have_their_width);

#if !defined(__CUDACC__)

FN u32 permute4(u32 a, u32 b, u32 selector)
{
    u64 both = (u64)b << 32 | a;
    return ((u32)(both >> (selector & 7) * 8) & 0xff) | ((u32)(both >> (selector >> 4 & 7) * 8) & 0xff) << 8 |
           ((u32)(both >> (selector >> 8 & 7) * 8) & 0xff) << 16 | ((u32)(both >> (selector >> 12 & 7) * 8) & 0xff) << 24;
}

#endif

#define XOR3(a, b, c) LOGIC3(a, b, c, 0x96, (a) ^ (b) ^ (c))

/* 16 bytes as two words. */
typedef struct {
    u64 lo;
    u64 hi;
} Word16;

#if defined(__CUDACC__)

/* One 16-byte instruction instead of two of 8 bytes. The kernels here touch their data once, so the
 * loads are marked as streaming and leave the caches to others; their own rate is the same without. */
FN Word16 load16(const u8 *at)
{
    ulonglong2 both = __ldcs((const ulonglong2 *)at);
    Word16 word;
    word.lo = both.x;
    word.hi = both.y;
    return word;
}
/* Without that mark, which is assembly of which the compiler does not know what it reads. */
FN Word16 load16_in_order(const u8 *at)
{
    ulonglong2 both = *(const ulonglong2 *)at;
    Word16 word;
    word.lo = both.x;
    word.hi = both.y;
    return word;
}
FN void store16(u8 *at, Word16 word) { *(ulonglong2 *)at = make_ulonglong2(word.lo, word.hi); }
FN u64 load8(const u8 *at) { return *(const u64 *)at; }
FN void store8(u8 *at, u64 word) { *(u64 *)at = word; }
FN void store2(u8 *at, u16 word) { *(u16 *)at = word; }

#elif defined(__OPENCL_VERSION__)

/* A macro, since Oclgrind does not know the intrinsic that its compiler leaves where a function that
 * returns a struct was inlined beside stores. */
#define load16(at) ((Word16){((GLOBAL const u64 *)(at))[0], ((GLOBAL const u64 *)(at))[1]})
FN void store16(GLOBAL u8 *at, Word16 word)
{
    ((GLOBAL u64 *)at)[0] = word.lo;
    ((GLOBAL u64 *)at)[1] = word.hi;
}
FN u64 load8(GLOBAL const u8 *at) { return *(GLOBAL const u64 *)at; }
FN void store8(GLOBAL u8 *at, u64 word) { *(GLOBAL u64 *)at = word; }
FN void store2(GLOBAL u8 *at, u16 word) { *(GLOBAL u16 *)at = word; }

#define load16_in_order(at) load16(at)

#else

/* The alignment that a device needs is checked here, where a sanitiser can report it. */
FN void check_aligned(const u8 *at, u64 bytes)
{
    if ((u64)at % bytes != 0) {
        __builtin_trap();
    }
}
FN u64 load8(const u8 *at)
{
    u64 word;
    check_aligned(at, 8);
    __builtin_memcpy(&word, at, 8);
    return word;
}
FN void store8(u8 *at, u64 word)
{
    check_aligned(at, 8);
    __builtin_memcpy(at, &word, 8);
}
FN void store2(u8 *at, u16 word)
{
    check_aligned(at, 2);
    __builtin_memcpy(at, &word, 2);
}
FN Word16 load16(const u8 *at)
{
    Word16 word;
    check_aligned(at, 16);
    __builtin_memcpy(&word, at, 16);
    return word;
}
FN Word16 load16_in_order(const u8 *at) { return load16(at); }
FN void store16(u8 *at, Word16 word)
{
    check_aligned(at, 16);
    __builtin_memcpy(at, &word, 16);
}

#endif

#endif
