/* Checks and changes of IPv4 headers in rows, per-thread part: what a forwarding path does between two links.
 *
 * A packet that fails gets a value in a slot, and nothing else of it is changed; one that passes keeps what the slot had.
 */
#ifndef BIFOLIO_IP_HEADER_H
#define BIFOLIO_IP_HEADER_H

#include "packet_rows.h"

#define IP_HEADER_CHECK 1u
#define IP_HEADER_DEC_TTL 2u
#define IP_HEADER_SET_CHECKSUM 4u
/* Packets to groups keep their TTL. */
#define IP_HEADER_KEEP_GROUPS 8u
#define IP_HEADER_ADDRESSES 8u

typedef struct {
    PacketRows rows;
    u32 flags;
    u32 slot;                              /* byte of the output row */
    u32 bad;                               /* its value for a header that is not right */
    u32 expired;                           /* for a packet whose TTL is over */
    u32 missing;                           /* for one without a header where none is checked; or PACKET_NONE */
    u32 has_checksum;                      /* whether the checksum is checked, too */
    u32 sources;                           /* how many addresses no packet may come from */
    u32 destinations;                      /* how many that may be sent to from these */
    u32 source[IP_HEADER_ADDRESSES];       /* as they lie in headers */
    u32 destination[IP_HEADER_ADDRESSES];
} IpHeaderParams;

STATIC_ASSERT(sizeof(IpHeaderParams) == 176, ip_header_params_match_rust);

FN u32 ip_header_fold(u64 sum)
{
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (u32)sum;
}

FN u32 ip_header_is_among(PRIVATE const u32 *addresses, u32 count, u32 address)
{
    u32 found = 0;
    u32 i;
    UNROLL
    for (i = 0; i < IP_HEADER_ADDRESSES; i++) {
        found |= i < count && addresses[i] == address;
    }
    return found;
}

/* The sum of a header's words without the third; 0, which no header has, where its options are not there. */
FN u64 ip_header_sum(GLOBAL const u8 *input, PRIVATE const PacketRows *rows, GLOBAL const u32 *in, u32 header_len)
{
    GLOBAL const u32 *header = in + rows->network;
    u64 sum = (u64)header[0] + header[1] + header[3] + header[4];
    if (header_len > 20) {
        u64 at = packet_span(rows, in, header_len - 20);
        GLOBAL const u32 *options = (GLOBAL const u32 *)(input + (rows->span_at + at));
        u32 i;
        if (at == ~(u64)0) {
            return 0;
        }
        for (i = 0; i < header_len / 4 - 5; i++) {
            sum += options[i];
        }
    }
    return sum;
}

/* The third word of a header with a TTL that is one less, not below 0, and the checksum that goes with it. The sum is the
 * same in either order of its bytes. */
FN u32 ip_header_decrement(u32 word)
{
    u32 sum = (word >> 16) + 1;
    sum += (sum + 1) >> 16;
    return sum << 16 | ((word & 0xffff) - 1);
}

FN void ip_header_thread(GLOBAL const u8 *input, GLOBAL u8 *output, PRIVATE const IpHeaderParams *params, u64 packet)
{
    PRIVATE const PacketRows *rows = &params->rows;
    GLOBAL const u32 *in = packet_input(rows, input, packet);
    GLOBAL u32 *out = packet_output(rows, output, packet);
    u32 flags = params->flags;
    u32 first, header_len, captured, word, is_whole;
    u64 sum = 0;
    if (!packet_takes_part(rows, out)) {
        return;
    }
    if (!packet_has_header(in[0])) {
        u32 value = (flags & IP_HEADER_CHECK) != 0 ? params->bad : params->missing;
        if (value != PACKET_NONE) {
            packet_set_slot(out, params->slot, value);
        }
        return;
    }
    captured = packet_captured(in[0]);
    first = in[rows->network];
    header_len = (first & 15) * 4;
    word = rows->ttl == PACKET_NONE ? in[rows->network + 2] : out[rows->ttl];
    is_whole = header_len >= 20 && header_len <= captured;
    if (is_whole && ((flags & IP_HEADER_SET_CHECKSUM) != 0 || params->has_checksum != 0)) {
        sum = ip_header_sum(input, rows, in, header_len);
    }
    if ((flags & IP_HEADER_CHECK) != 0) {
        u32 total_len = swap_bytes(first) & 0xffff;
        u32 is_bad = (first & 0xf0) != 0x40 || header_len < 20 || total_len > captured || total_len < header_len;
        is_bad |= params->has_checksum != 0 && (sum == 0 || ip_header_fold(sum + word) != 0xffff);
        is_bad |= ip_header_is_among(params->source, params->sources, in[rows->network + 3]) &&
                  !ip_header_is_among(params->destination, params->destinations, in[rows->network + 4]);
        if (is_bad) {
            packet_set_slot(out, params->slot, params->bad);
            return;
        }
    }
    if ((flags & IP_HEADER_DEC_TTL) != 0 &&
        ((flags & IP_HEADER_KEEP_GROUPS) == 0 || (in[rows->network + 4] & 0xf0) != 0xe0)) {
        if ((word & 0xff) <= 1) {
            packet_set_slot(out, params->slot, params->expired);
            return;
        }
        word = ip_header_decrement(word);
    }
    if ((flags & IP_HEADER_SET_CHECKSUM) != 0) {
        if (sum == 0) {
            packet_set_slot(out, params->slot, params->bad);
            return;
        }
        word &= 0xffff;
        word |= (~ip_header_fold(sum + word) & 0xffff) << 16;
    }
    if ((flags & (IP_HEADER_DEC_TTL | IP_HEADER_SET_CHECKSUM)) != 0) {
        out[rows->ttl] = word;
    }
}

#endif
