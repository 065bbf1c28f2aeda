/* Checks and changes IPv4 headers: one thread a packet. */
#include "ip_header.h"

KERNEL void ip_header(GLOBAL const u8 *input, GLOBAL u8 *output, const IpHeaderParams params)
{
    u64 packet = packet_of_thread();
    if (packet < params.rows.count) {
        ip_header_thread(input, output, &params, packet);
    }
}
