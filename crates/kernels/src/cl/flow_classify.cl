/* Classifies packets by rules: one thread a packet. */
#include "flow_classify.h"

KERNEL void flow_classify(GLOBAL const u8 *input, GLOBAL const u32 *image, GLOBAL u8 *output,
                          const FlowClassifyParams params)
{
    u64 packet = packet_of_thread();
    if (packet < params.rows.count) {
        flow_classify_thread(input, image, output, &params, packet);
    }
}
