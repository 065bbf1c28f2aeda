/* Begins the output rows of a batch: one thread a packet. */
#include "packet_begin.h"

KERNEL void packet_begin(GLOBAL const u8 *input, GLOBAL u8 *output, const PacketRows params)
{
    u64 packet = packet_of_thread();
    if (packet < params.count) {
        packet_begin_thread(input, output, &params, packet);
    }
}
