/* Classification of packets by rules over many fields, per-thread part: a tuple space.
 *
 * The image is an array of words:
 *
 *   0      how many tables there are, at most 64        8, 9    tables whose rules do not test the source, two words
 *   1      slots begin at this word                     10, 11  the same of the destination
 *   2      how many slots there are                     12, 13  the same of the protocol
 *   3      lines begin here, at a multiple of 16        14, 15  unused
 *   4      how many lines there are
 *   5      parts of lines that test other words begin here, 6 words for each line: values, then masks
 *   6      the pruner begins here: 65536 + 65536 + 256 pairs of words
 *   7      the length of all
 *   16 ... tables of 16 words, by their best ranks: 8 of the mask, whether it tests words beyond the fourth, the first slot,
 *          a mask for numbers of slots, unused, the best rank in two words, two unused ones
 *
 * A slot is a hash and the number of the first line of a list; a line is a rule of 16 words (see FlowTable's lists). Bit n of
 * the pruner's sets is table n. All that leads from one place to another is checked against the numbers above, as far as
 * these are in the parameters, and a walk has an end: an image that lies cannot make a kernel read elsewhere or run on.
 */
#ifndef BIFOLIO_FLOW_CLASSIFY_H
#define BIFOLIO_FLOW_CLASSIFY_H

#include "packet_rows.h"

#define FLOW_WORDS 8u
#define FLOW_NONE 0xffffffffu
#define FLOW_IS_WIDE 0x8000u
#define FLOW_HAS_ETHER 1u
#define FLOW_HAS_IP 2u
#define FLOW_HAS_PORTS 4u
#define FLOW_HAS_DETAIL 8u

typedef struct {
    PacketRows rows;
    u32 slot;     /* byte of the output row, for the output's number */
    u32 miss;     /* its value where no rule matches */
    u32 number;   /* output word for the rule's number, all ones for none; or PACKET_NONE */
    u32 tables;   /* as in the image, from here on */
    u32 slots_at;
    u32 slots;
    u32 lines_at;
    u32 lines;
    u32 far_at;
    u32 pruner_at;
    u32 words;
    u32 reserved;
} FlowClassifyParams;

STATIC_ASSERT(sizeof(FlowClassifyParams) == 128, flow_classify_params_match_rust);

/* What hashes are made with, one for each word. */
CONSTANT_TABLE u32 flow_numbers[FLOW_WORDS] = {0x9e3779b9u, 0x85ebca6bu, 0xc2b2ae35u, 0x27d4eb2fu,
                                               0x165667b1u, 0xd3a2646du, 0xfd7046c5u, 0xb55a4f09u};

/* Two bytes of a region, at an even place. */
FN u32 flow_pair(GLOBAL const u32 *words, u32 at) { return swap_bytes(words[at / 4]) >> (16 - at % 4 * 8) & 0xffff; }

FN void flow_read_link(GLOBAL const u32 *link, u32 descriptor, PRIVATE u32 *key)
{
    u32 more = descriptor >> 28 & 7; /* pairs of bytes behind the header of 14 */
    u32 kind = flow_pair(link, 12), at = 12, tag = 0;
    u32 first = swap_bytes(link[0]), second = swap_bytes(link[1]), third = swap_bytes(link[2]);
    if (kind == 0x8100 || kind == 0x88a8) {
        tag = more >= 1 ? flow_pair(link, 14) & 0xfff : 0;
        for (; at < 20 && (kind == 0x8100 || kind == 0x88a8) && more >= 2; more -= 2) {
            at += 4;
            kind = flow_pair(link, at);
        }
    }
    key[4] |= kind << 16 | tag << 4 | FLOW_HAS_ETHER;
    key[5] = third;
    key[6] = shift_in(first, second, 16);
    key[7] = shift_in(second, first, 16);
}

/* The fields of a packet, as FlowTable's keys have them. */
FN void flow_key(PRIVATE const PacketRows *rows, GLOBAL const u32 *in, PRIVATE u32 *key)
{
    GLOBAL const u32 *network = in + rows->network;
    u32 descriptor = in[0], captured = packet_captured(descriptor);
    u32 first, header_len, total_len, len, protocol, transport;
    UNROLL
    for (first = 0; first < FLOW_WORDS; first++) {
        key[first] = 0;
    }
    if (rows->link != PACKET_NONE && (descriptor & PACKET_HAS_LINK) != 0) {
        flow_read_link(in + rows->link, descriptor, key);
    }
    first = swap_bytes(network[0]);
    header_len = (first >> 24 & 15) * 4;
    if (!packet_has_header(descriptor) || first >> 28 != 4 || header_len < 20 || header_len > captured) {
        return;
    }
    protocol = network[2] >> 8 & 0xff;
    key[0] = swap_bytes(network[3]);
    key[1] = swap_bytes(network[4]);
    key[3] = protocol << 24 | (first >> 16 & 0xff) << 16;
    key[4] |= FLOW_HAS_IP;
    total_len = first & 0xffff;
    len = total_len < captured ? total_len : captured;
    if (len < header_len || (swap_bytes(network[1]) & 0x1fff) != 0) {
        return;
    }
    len -= header_len;
    transport = swap_bytes(in[rows->transport]);
    if (protocol == 1 && len >= 2) {
        key[3] |= transport >> 16;
        key[4] |= FLOW_HAS_DETAIL;
    }
    if ((protocol == 6 || protocol == 17 || protocol == 33 || protocol == 132 || protocol == 136) && len >= 4) {
        key[2] = transport;
        key[4] |= FLOW_HAS_PORTS;
    }
    if (protocol == 6 && len >= 14) {
        key[3] |= (descriptor >> 16 & 0xff) << 8;
        key[4] |= FLOW_HAS_DETAIL;
    }
}

FN u64 flow_part(u32 word, u32 mask, u32 at) { return (word & mask) + flow_numbers[at]; }

/* The hash of the bits that a table tests. */
FN u32 flow_hash(PRIVATE const u32 *key, GLOBAL const u32 *table)
{
    Word16 low = load16_in_order((GLOBAL const u8 *)table);
    u64 sum = flow_part(key[0], (u32)low.lo, 0) * flow_part(key[1], (u32)(low.lo >> 32), 1) +
              flow_part(key[2], (u32)low.hi, 2) * flow_part(key[3], (u32)(low.hi >> 32), 3);
    if (table[8] != 0) {
        sum += flow_part(key[4], table[4], 4) * flow_part(key[5], table[5], 5);
        sum += flow_part(key[6], table[6], 6) * flow_part(key[7], table[7], 7);
    }
    return (u32)(((sum ^ sum >> 29) * 0x9e3779b97f4a7c15ul) >> 32);
}

/* The first line of the list with a hash. */
FN u32 flow_head(GLOBAL const u32 *image, PRIVATE const FlowClassifyParams *params, GLOBAL const u32 *table, u32 hash)
{
    u32 first = table[9], last = table[10], left = params->slots;
    u32 at = hash;
    for (; left > 0; left--) {
        u32 slot = first + (at & last);
        u64 both;
        if (slot >= params->slots) {
            return FLOW_NONE;
        }
        both = load8((GLOBAL const u8 *)(image + params->slots_at + (u64)slot * 2));
        if ((u32)both == hash || (u32)(both >> 32) == FLOW_NONE) {
            return (u32)both == hash ? (u32)(both >> 32) : FLOW_NONE;
        }
        at++;
    }
    return FLOW_NONE;
}

FN u32 flow_is_in(u32 port, u32 range) { return port - (range & 0xffff) <= (range >> 16) - (range & 0xffff); }

/* Bits of a word that a rule tests, and that are other ones. */
FN u32 flow_differs(u32 word, u32 value, u32 mask) { return (word ^ value) & mask; }

/* Looks a packet up in a list; what is better than `best` becomes `best`, and its line's place `place`. */
FN void flow_look(GLOBAL const u32 *image, PRIVATE const FlowClassifyParams *params, PRIVATE const u32 *key, u32 head,
                  PRIVATE u64 *best, PRIVATE u32 *place)
{
    u32 left = params->lines;
    for (; head < params->lines && left > 0; left--) {
        GLOBAL const u8 *line = (GLOBAL const u8 *)(image + params->lines_at + (u64)head * 16);
        Word16 a = load16_in_order(line), b = load16_in_order(line + 16), c = load16_in_order(line + 32);
        Word16 d = load16_in_order(line + 48);
        u64 rank = d.lo;
        u32 differs;
        if (rank >= *best) {
            return;
        }
        /* Values are words 0 to 4, masks words 5 to 9, ranges words 10 and 11. */
        differs = flow_differs(key[0], (u32)a.lo, (u32)(b.lo >> 32)) |
                  flow_differs(key[1], (u32)(a.lo >> 32), (u32)b.hi) |
                  flow_differs(key[2], (u32)a.hi, (u32)(b.hi >> 32)) |
                  flow_differs(key[3], (u32)(a.hi >> 32), (u32)c.lo) |
                  flow_differs(key[4], (u32)b.lo, (u32)(c.lo >> 32));
        if (differs == 0 && ((u32)d.hi & FLOW_IS_WIDE) != 0) {
            GLOBAL const u32 *far = image + params->far_at + (u64)head * 6;
            differs = flow_differs(key[5], far[0], far[3]) | flow_differs(key[6], far[1], far[4]) |
                      flow_differs(key[7], far[2], far[5]);
        }
        if (differs == 0 && flow_is_in(key[2] >> 16, (u32)c.hi) && flow_is_in(key[2] & 0xffff, (u32)(c.hi >> 32))) {
            *best = rank;
            *place = (u32)d.hi;
            return;
        }
        head = (u32)(d.hi >> 32);
    }
}

/* Tables that may have a rule for a packet, by one of its fields. */
FN u64 flow_prune(GLOBAL const u32 *image, u32 always, u64 entry)
{
    return load8((GLOBAL const u8 *)(image + always)) | load8((GLOBAL const u8 *)(image + entry));
}

FN void flow_classify_thread(GLOBAL const u8 *input, GLOBAL const u32 *image, GLOBAL u8 *output,
                             PRIVATE const FlowClassifyParams *params, u64 packet)
{
    PRIVATE const PacketRows *rows = &params->rows;
    GLOBAL u32 *out = packet_output(rows, output, packet);
    u32 key[FLOW_WORDS];
    u32 place = 0;
    u64 best = ~(u64)0, pruner = params->pruner_at, tables;
    if (!packet_takes_part(rows, out)) {
        return;
    }
    flow_key(rows, packet_input(rows, input, packet), key);
    tables = flow_prune(image, 8, pruner + (key[0] >> 16) * 2) &
             flow_prune(image, 10, pruner + 0x20000 + (key[1] >> 16) * 2) &
             flow_prune(image, 12, pruner + 0x40000 + (key[3] >> 24) * 2);
    tables &= params->tables < 64 ? ((u64)1 << params->tables) - 1 : ~(u64)0;
    while (tables != 0) {
        GLOBAL const u32 *table = image + 16 + lowest_bit64(tables) * 16;
        u64 first = load8((GLOBAL const u8 *)(table + 12));
        u32 head;
        if (first >= best) {
            break;
        }
        tables &= tables - 1;
        head = flow_head(image, params, table, flow_hash(key, table));
        flow_look(image, params, key, head, &best, &place);
    }
    packet_set_slot(out, params->slot, best == ~(u64)0 ? params->miss : place >> 16);
    if (params->number != PACKET_NONE) {
        out[params->number] = (u32)best;
    }
}

#endif
