/* Looks up where packets go: one thread a packet. */
#include "ip_lookup.h"

KERNEL void ip_lookup(GLOBAL const u8 *input, GLOBAL const u16 *level1, GLOBAL const u16 *level2,
                      GLOBAL const IpLookupHop *hops, GLOBAL u8 *output, const IpLookupParams params)
{
    u64 packet = packet_of_thread();
    if (packet < params.rows.count) {
        ip_lookup_thread(input, level1, level2, hops, output, &params, packet);
    }
}
