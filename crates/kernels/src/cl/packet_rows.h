/* Packets in rows, what all kernels over packets share.
 *
 * A batch has an input row for each packet, and perhaps a variable part that rows point into; kernels write output rows.
 * Rows are words of 32 bits, bytes in them as on the wire, so that the lowest bits of a word have its first byte.
 *
 *   input row, word 0     the descriptor: bits 0 to 15 bytes of the packet from its network header on, as captured;
 *                         bits 16 to 23 byte 13 of the transport header, 0 where it is not there; PACKET_* flags;
 *                         bits 28 to 30 how much of the Ethernet frame the link region has, in units of 2 bytes
 *                         beyond 14, at most 4
 *   word 1, with spans    where the packet's part of the variable part begins, in units of 4 bytes
 *   output row, word 0    four slots of a byte: verdicts and ports
 *
 * A kernel checks what a row says before it reads there: a row that lies reads nothing outside the variable part.
 * Words that the parameters name lie inside their rows; that is checked before a launch.
 */
#ifndef BIFOLIO_PACKET_ROWS_H
#define BIFOLIO_PACKET_ROWS_H

#include "kdef.h"

#define PACKET_GROUP_SIZE 256u
/* Of a word or a byte: there is none. */
#define PACKET_NONE 0xffffffffu

/* Flags of the descriptor. */
#define PACKET_HAS_LINK (1u << 24)
#define PACKET_HAS_NETWORK (1u << 25)
#define PACKET_HAS_TRANSPORT (1u << 26)
#define PACKET_HAS_BYTE_13 (1u << 27)

/* Values of `spans`. */
#define PACKET_SPANS_NONE 0u
#define PACKET_SPANS_OPTIONS 1u
#define PACKET_SPANS_ALL 2u

typedef struct {
    u64 input_at;      /* first input row, in bytes from the input buffer's begin; a multiple of 16 */
    u64 output_at;     /* first output row, in bytes from the output buffer's begin; a multiple of 16 */
    u64 span_at;       /* the variable part, in bytes from the input buffer's begin; a multiple of 16 */
    u64 span_bytes;    /* its length */
    u32 count;         /* packets */
    u32 input_words;   /* words of an input row */
    u32 output_words;  /* words of an output row */
    u32 spans;         /* what packets have in the variable part */
    u32 annotations;   /* the input word with the first values of output word 0 */
    u32 link;          /* the first of 6 input words: 24 bytes of the Ethernet frame */
    u32 network;       /* the first of 5 input words: 20 bytes of the network header */
    u32 transport;     /* the input word with 4 bytes behind the IP header */
    u32 ttl;           /* the output word with bytes 8 to 12 of the IP header, as changed so far */
    u32 test;          /* the byte of output rows that says whether a packet takes part */
    u32 test_value;    /* its value then */
    u32 reserved;
} PacketRows;

STATIC_ASSERT(sizeof(PacketRows) == 80, packet_rows_match_rust);

/* The packet of this thread: `count` or more for those behind the last one. */
#define packet_of_thread() ((u64)group_index() * PACKET_GROUP_SIZE + thread_in_group())

FN GLOBAL const u32 *packet_input(PRIVATE const PacketRows *rows, GLOBAL const u8 *input, u64 packet)
{
    return (GLOBAL const u32 *)(input + (rows->input_at + packet * rows->input_words * 4));
}

FN GLOBAL u32 *packet_output(PRIVATE const PacketRows *rows, GLOBAL u8 *output, u64 packet)
{
    return (GLOBAL u32 *)(output + (rows->output_at + packet * rows->output_words * 4));
}

/* Whether a packet takes part, by its output row. */
FN u32 packet_takes_part(PRIVATE const PacketRows *rows, GLOBAL const u32 *out)
{
    return rows->test == PACKET_NONE || ((GLOBAL const u8 *)out)[rows->test] == rows->test_value;
}

FN void packet_set_slot(GLOBAL u32 *out, u32 slot, u32 value) { ((GLOBAL u8 *)out)[slot] = (u8)value; }

/* Bytes of the packet from its network header on. */
FN u32 packet_captured(u32 descriptor) { return descriptor & 0xffff; }

/* Whether 20 bytes of a network header are there. */
FN u32 packet_has_header(u32 descriptor)
{
    return (descriptor & PACKET_HAS_NETWORK) != 0 && packet_captured(descriptor) >= 20;
}

/* The first `bytes` of a packet's part of the variable part are at `span_at` plus what this gives; where
 * the variable part has no such bytes: all ones. */
FN u64 packet_span(PRIVATE const PacketRows *rows, GLOBAL const u32 *in, u64 bytes)
{
    u64 at = (u64)in[1] * 4;
    return at <= rows->span_bytes && bytes <= rows->span_bytes - at ? at : ~(u64)0;
}

#endif
