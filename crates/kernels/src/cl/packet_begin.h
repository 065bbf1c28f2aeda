/* The first kernel over a batch of packets, per-thread part: every word of an output row gets its first value. */
#ifndef BIFOLIO_PACKET_BEGIN_H
#define BIFOLIO_PACKET_BEGIN_H

#include "packet_rows.h"

FN void packet_begin_thread(GLOBAL const u8 *input, GLOBAL u8 *output, PRIVATE const PacketRows *rows, u64 packet)
{
    GLOBAL const u32 *in = packet_input(rows, input, packet);
    GLOBAL u32 *out = packet_output(rows, output, packet);
    u32 word;
    out[0] = rows->annotations == PACKET_NONE ? 0 : in[rows->annotations];
    for (word = 1; word < rows->output_words; word++) {
        out[word] = word == rows->ttl ? in[rows->network + 2] : 0;
    }
}

#endif
