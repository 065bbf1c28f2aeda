/* Longest-prefix lookup of IPv4 addresses, per-thread part: DIR-24-8.
 *
 * Level 1 has 2 bytes for the upper 24 bits of an address: a code, or with the highest bit the number of a list of 256
 * codes in level 2. A code is the place of a next hop; code 0 is the default route's.
 */
#ifndef BIFOLIO_IP_LOOKUP_H
#define BIFOLIO_IP_LOOKUP_H

#include "packet_rows.h"

#define IP_LOOKUP_LIST 0x8000u
/* Output numbers from this one on are none. */
#define IP_LOOKUP_OUTPUTS 255u

typedef struct {
    PacketRows rows;
    u32 destination;  /* the word with the address, as it lies in headers */
    u32 is_output;    /* whether it is one of the output row */
    u32 slot;         /* byte of the output row, for the output's number */
    u32 miss;         /* its value for addresses without a route */
    u32 gateway;      /* output word for the gateway, as in headers, 0 without one; or PACKET_NONE */
    u32 level1_codes;
    u32 level2_codes;
    u32 hop_count;
} IpLookupParams;

/* A next hop, in 8 bytes. */
typedef struct {
    u32 gateway;
    u32 output;
} IpLookupHop;

STATIC_ASSERT(sizeof(IpLookupParams) == 112, ip_lookup_params_match_rust);
STATIC_ASSERT(sizeof(IpLookupHop) == 8, ip_lookup_hop_matches_rust);

FN void ip_lookup_thread(GLOBAL const u8 *input, GLOBAL const u16 *level1, GLOBAL const u16 *level2,
                         GLOBAL const IpLookupHop *hops, GLOBAL u8 *output, PRIVATE const IpLookupParams *params,
                         u64 packet)
{
    PRIVATE const PacketRows *rows = &params->rows;
    GLOBAL u32 *out = packet_output(rows, output, packet);
    u32 address, code, port = IP_LOOKUP_OUTPUTS, gateway = 0;
    if (!packet_takes_part(rows, out)) {
        return;
    }
    address = params->is_output != 0 ? out[params->destination]
                                     : packet_input(rows, input, packet)[params->destination];
    address = swap_bytes(address);
    code = address >> 8 < params->level1_codes ? level1[address >> 8] : 0;
    if ((code & IP_LOOKUP_LIST) != 0) {
        u32 at = (code & (IP_LOOKUP_LIST - 1)) << 8 | (address & 0xff);
        code = at < params->level2_codes ? level2[at] : 0;
    }
    if (code < params->hop_count) {
        u64 hop = load8((GLOBAL const u8 *)(hops + code));
        gateway = (u32)hop;
        port = (u32)(hop >> 32);
    }
    packet_set_slot(out, params->slot, port < IP_LOOKUP_OUTPUTS ? port : params->miss);
    if (params->gateway != PACKET_NONE) {
        out[params->gateway] = port < IP_LOOKUP_OUTPUTS ? gateway : 0;
    }
}

#endif
