/* A program's kernel that reads a file in demand mode, in the languages that the header is for: each
 * item asks the same number of questions, in order, and sums the bytes that it gets. */
#include "bifolio_demand.h"

#if defined(__OPENCL_VERSION__)
#define KERNEL __kernel
#define GLOBAL __global
#define SLOT ((uint)get_global_id(0))
#else
#define KERNEL extern "C" __global__
#define GLOBAL
#define SLOT (blockIdx.x * blockDim.x + threadIdx.x)
#endif

typedef struct {
    bifolio_demand_u64 offset;
    bifolio_demand_u64 length;
} Question;

typedef struct {
    bifolio_demand_u32 questions; /* of each item */
    bifolio_demand_u32 goes_on;   /* 1: all questions are asked; 0: the first that is missed is the last */
} ProbeParams;

KERNEL void demand_probe(GLOBAL bifolio_demand *demand, GLOBAL const unsigned char *file,
                         GLOBAL const Question *questions, GLOBAL bifolio_demand_u64 *sums, const ProbeParams params)
{
    bifolio_demand_u32 slot = SLOT;
    bifolio_demand_u32 item, number, missed = 0;
    bifolio_demand_u64 at, sum = 0;
    if (slot >= bifolio_demand_items(demand)) {
        return;
    }
    item = bifolio_demand_item(demand, slot);
    for (number = 0; number < params.questions && (params.goes_on || !missed); number++) {
        Question question = questions[(bifolio_demand_u64)item * params.questions + number];
        GLOBAL const unsigned char *bytes = bifolio_demand_get(demand, file, question.offset, question.length);
        if (!bytes) {
            missed = 1;
            continue;
        }
        for (at = 0; at < question.length; at++) {
            sum = sum * 31 + bytes[at];
        }
    }
    if (!missed) {
        sums[item] = sum;
        bifolio_demand_finish(demand, slot);
    }
}
