// The per-thread functions over packets in rows, on exact-size heap buffers, against their definitions. Built with
// AddressSanitizer and UBSan. Argument: the seed.
#include "flow_classify.h"
#include "ip_header.h"
#include "ip_lookup.h"
#include "packet_begin.h"

#include "harness.hpp"

#include <vector>

// A batch whose rows are noise: what they say is true of nothing.
struct Batch {
    PacketRows rows;
    ExactBuffer input, output;
    std::vector<u8> before;

    Batch(PacketRows drawn, Draw &draw)
        : rows(drawn), input(drawn.span_at + drawn.span_bytes),
          output(drawn.output_at + (u64)drawn.count * drawn.output_words * 4)
    {
        draw.fill(input.data(), input.size());
        draw.fill(output.data(), output.size());
        before.assign(output.data(), output.data() + output.size());
    }
    u32 in(u64 packet, u32 word) { return word_at(input.data() + rows.input_at, packet * rows.input_words + word); }
    u32 out(u64 packet, u32 word) { return word_at(output.data() + rows.output_at, packet * rows.output_words + word); }
    static u32 word_at(const u8 *bytes, u64 word)
    {
        u32 value;
        memcpy(&value, bytes + word * 4, 4);
        return value;
    }
};

static PacketRows draw_rows(Draw &draw)
{
    PacketRows rows = {};
    rows.count = 1 + draw.below(40);
    rows.spans = draw.below(3);
    rows.link = 2 + draw.below(2);
    rows.network = rows.link + 6;
    rows.transport = rows.network + 5;
    rows.annotations = draw.below(2) ? rows.transport + 1 : PACKET_NONE;
    rows.input_words = rows.transport + 2;
    rows.output_words = 2 + draw.below(3);
    rows.ttl = draw.below(4) ? 1 : PACKET_NONE;
    rows.test = draw.below(2) ? 3 : PACKET_NONE;
    rows.input_at = draw.below(3) * 16;
    rows.output_at = draw.below(3) * 16;
    rows.span_at = (rows.input_at + (u64)rows.count * rows.input_words * 4 + 15) / 16 * 16;
    rows.span_bytes = draw.below(30) * 4;
    return rows;
}

static void check_begin(Draw &draw)
{
    Batch batch(draw_rows(draw), draw);
    const PacketRows &rows = batch.rows;
    for (u64 packet = 0; packet < rows.count; packet++) {
        packet_begin_thread(batch.input.data(), batch.output.data(), &rows, packet);
        for (u32 word = 0; word < rows.output_words; word++) {
            u32 expected = word == 0 && rows.annotations != PACKET_NONE ? batch.in(packet, rows.annotations) : 0;
            expected = word != 0 && word == rows.ttl ? batch.in(packet, rows.network + 2) : expected;
            if (batch.out(packet, word) != expected) {
                fail("word %u of packet %llu begins as %#x instead of %#x", word, packet, batch.out(packet, word),
                     expected);
            }
        }
    }
    for (u64 i = 0; i < rows.output_at; i++) {
        if (batch.output.data()[i] != batch.before[i]) {
            fail("byte %llu before the output rows was changed", i);
        }
    }
}

static void check_spans(Draw &draw)
{
    PacketRows rows = {};
    rows.span_bytes = draw.below(8) * 4;
    u32 row[2] = {0, (u32)draw.below(2) ? (u32)draw.next() : (u32)draw.below(10)};
    u64 bytes = draw.below(40), at = packet_span(&rows, row, bytes);
    bool is_there = (u64)row[1] * 4 + bytes <= rows.span_bytes;
    if (is_there ? at != (u64)row[1] * 4 : at != ~(u64)0) {
        fail("%llu bytes at %u of %llu are at %llu", bytes, row[1] * 4, rows.span_bytes, at);
    }
}

// Packets whose headers are right but for one byte, perhaps: what follows from the checksum of each.
static void check_headers(Draw &draw)
{
    IpHeaderParams params = {};
    params.rows = draw_rows(draw);
    params.rows.spans = PACKET_SPANS_OPTIONS;
    params.rows.ttl = 1;
    params.rows.span_bytes = 40;
    Batch batch(params.rows, draw);
    const PacketRows &rows = params.rows;
    params.flags = IP_HEADER_CHECK | (draw.below(2) ? IP_HEADER_DEC_TTL : 0);
    params.has_checksum = 1;
    params.bad = 77;
    params.expired = 78;
    for (u64 packet = 0; packet < rows.count; packet++) {
        u8 *row = batch.input.data() + rows.input_at + packet * rows.input_words * 4;
        u8 *out = batch.output.data() + rows.output_at + packet * rows.output_words * 4;
        u8 *header = row + rows.network * 4;
        u32 options = (u32)draw.below(11), first = (u32)draw.below(20), words[2] = {PACKET_HAS_NETWORK | 100, first};
        header[0] = (u8)(0x45 + options);
        header[2] = 0;
        header[3] = 100;
        header[8] = (u8)draw.below(4);
        header[10] = header[11] = 0;
        bool is_there = options == 0 || first + options <= 10;
        u32 sum = 0;
        for (u32 i = 0; i < 10 + (is_there ? options * 2 : 0); i++) {
            const u8 *two = i < 10 ? header + i * 2 : batch.input.data() + rows.span_at + first * 4 + (i - 10) * 2;
            sum += (u32)two[0] << 8 | two[1];
        }
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        header[10] = (u8)(~sum >> 8);
        header[11] = (u8)~sum;
        memcpy(row, words, 8);
        memcpy(out + 4, header + 8, 4);
        if (rows.test != PACKET_NONE) {
            out[rows.test] = (u8)rows.test_value;
        }
        out[0] = 1;
        bool is_over = is_there && (params.flags & IP_HEADER_DEC_TTL) != 0 && header[8] < 2;
        u8 expected = !is_there ? 77 : is_over ? 78 : 1;
        ip_header_thread(batch.input.data(), batch.output.data(), &params, packet);
        if (out[0] != expected) {
            fail("packet %llu with %u words of options at %u has %u instead of %u", packet, options, first, out[0],
                 expected);
        }
        u32 change = expected == 1 && (params.flags & IP_HEADER_DEC_TTL) != 0 ? 1 : 0;
        sum = ((u32)header[10] << 8 | header[11]) + change * 0x100;
        sum = (sum & 0xffff) + (sum >> 16);
        u32 found = (u32)out[6] << 8 | out[7];
        if (out[4] != header[8] - change || out[5] != header[9] || (sum % 0xffff) != (found % 0xffff)) {
            fail("the header of packet %llu has TTL %u and checksum %#x", packet, out[4], found);
        }
    }
    // Whatever rows say.
    draw.fill(batch.input.data() + rows.input_at, (u64)rows.count * rows.input_words * 4);
    for (u64 packet = 0; packet < rows.count; packet++) {
        params.flags = (u32)draw.below(16);
        ip_header_thread(batch.input.data(), batch.output.data(), &params, packet);
    }
}

// One rule for each destination of few, in one table, and rows of noise.
static void check_classes(Draw &draw)
{
    const u32 rules = 6, size = 16, slots_at = 32, lines_at = 64, far_at = lines_at + rules * 16,
              pruner_at = far_at + rules * 6, words = pruner_at + (65536 * 2 + 256) * 2;
    ExactBuffer memory((u64)words * 4);
    u32 *image = (u32 *)memory.data();
    memset(image, 0, memory.size());
    u32 header[8] = {1, slots_at, size, lines_at, rules, far_at, pruner_at, words};
    memcpy(image, header, sizeof header);
    image[8] = image[12] = 1;
    image[16 + 1] = ~0u;
    image[16 + 10] = size - 1;
    for (u32 i = 0; i < size; i++) {
        image[slots_at + i * 2 + 1] = FLOW_NONE;
    }
    for (u32 i = 0; i < rules; i++) {
        u32 *line = image + lines_at + i * 16, key[8] = {0, i << 16 | i, 0, 0, 0, 0, 0, 0};
        u32 at = flow_hash(key, image + 16) % size;
        line[1] = key[1];
        line[6] = ~0u;
        line[10] = line[11] = 0xffff0000u;
        line[12] = i;
        line[14] = (i + 1) << 16;
        line[15] = FLOW_NONE;
        while (image[slots_at + at * 2 + 1] != FLOW_NONE) {
            at = (at + 1) % size;
        }
        image[slots_at + at * 2] = flow_hash(key, image + 16);
        image[slots_at + at * 2 + 1] = i;
        image[pruner_at + (0x10000 + i) * 2] = 1;
    }
    FlowClassifyParams params = {};
    params.rows = draw_rows(draw);
    params.rows.test = PACKET_NONE;
    params.slot = 3;
    params.miss = 200;
    params.number = 1;
    params.tables = 1;
    params.slots_at = slots_at;
    params.slots = size;
    params.lines_at = lines_at;
    params.lines = rules;
    params.far_at = far_at;
    params.pruner_at = pruner_at;
    params.words = words;
    Batch batch(params.rows, draw);
    for (u64 packet = 0; packet < params.rows.count; packet++) {
        u8 *row = batch.input.data() + batch.rows.input_at + packet * batch.rows.input_words * 4;
        u8 *network = row + batch.rows.network * 4;
        u32 which = (u32)draw.below(8), descriptor = (u32)draw.next() | 64 | PACKET_HAS_NETWORK;
        u32 address = swap_bytes(which << 16 | which);
        bool is_ip = draw.below(4) != 0;
        memcpy(row, &descriptor, 4);
        memcpy(network + 16, &address, 4);
        network[0] = is_ip ? 0x45 : 0x65;
        flow_classify_thread(batch.input.data(), image, batch.output.data(), &params, packet);
        which = is_ip ? which : 0; /* The address of what is no IP packet is 0. */
        u32 port = which < rules ? which + 1 : 200, number = which < rules ? which : ~0u;
        if (batch.out(packet, 0) >> 24 != port || batch.out(packet, 1) != number) {
            fail("packet %llu to %u goes to %u by rule %u", packet, which, batch.out(packet, 0) >> 24,
                 batch.out(packet, 1));
        }
    }
    // Whatever an image says, as long as the parameters are right.
    draw.fill(memory.data(), memory.size());
    for (u64 packet = 0; packet < params.rows.count; packet++) {
        flow_classify_thread(batch.input.data(), image, batch.output.data(), &params, packet);
    }
}

// Addresses of few bits, in tables of noise.
static void check_lookup(Draw &draw)
{
    IpLookupParams params = {};
    params.rows = draw_rows(draw);
    params.rows.test = PACKET_NONE;
    params.destination = params.rows.network + 4;
    params.slot = 3;
    params.miss = 255;
    params.gateway = draw.below(2) ? 1 : PACKET_NONE;
    params.level1_codes = 1 + (u32)draw.below(8);
    params.level2_codes = (u32)draw.below(3) * 256;
    params.hop_count = (u32)draw.below(6);
    Batch batch(params.rows, draw);
    ExactBuffer level1(params.level1_codes * 2), level2(params.level2_codes * 2), hops(params.hop_count * 8);
    u16 *first = (u16 *)level1.data(), *second = (u16 *)level2.data();
    for (u32 i = 0; i < params.level1_codes; i++) {
        first[i] = (u16)(draw.below(2) ? 0x8000 | draw.below(3) : draw.below(7));
    }
    for (u32 i = 0; i < params.level2_codes; i++) {
        second[i] = (u16)draw.below(7);
    }
    for (u32 i = 0; i < params.hop_count; i++) {
        u32 hop[2] = {(u32)draw.next(), (u32)draw.below(300)};
        memcpy(hops.data() + i * 8, hop, 8);
    }
    for (u64 packet = 0; packet < params.rows.count; packet++) {
        u8 *in = batch.input.data() + batch.rows.input_at + (packet * batch.rows.input_words + params.destination) * 4;
        in[0] = 0;
        in[1] = (u8)(draw.below(20) == 0);
        in[2] = (u8)draw.below(9);
        u32 prefix = (u32)in[1] << 8 | in[2], code = prefix < params.level1_codes ? first[prefix] : 0, hop[2] = {0, 255};
        if (code >= 0x8000) {
            u32 at = (code - 0x8000) * 256 + in[3];
            code = at < params.level2_codes ? second[at] : 0;
        }
        if (code < params.hop_count) {
            memcpy(hop, hops.data() + code * 8, 8);
        }
        ip_lookup_thread(batch.input.data(), first, second, (IpLookupHop *)hops.data(), batch.output.data(), &params,
                         packet);
        u32 port = hop[1] < 255 ? hop[1] : 255, gateway = hop[1] < 255 ? hop[0] : 0;
        if (batch.out(packet, 0) >> 24 != port || (params.gateway == 1 && batch.out(packet, 1) != gateway)) {
            fail("packet %llu goes to %u instead of %u", packet, batch.out(packet, 0) >> 24, port);
        }
    }
}

// Every checksum, as the standard's sum in the order of the network has it.
static void check_decrement()
{
    for (u32 checksum = 0; checksum < 0x10000; checksum++) {
        u32 word = (checksum >> 8 | (checksum & 0xff) << 8) << 16 | 0x0640, after = ip_header_decrement(word);
        u32 sum = checksum + 0x100;
        sum = (sum + ((sum + 1) >> 16)) & 0xffff;
        if (after != ((sum >> 8 | (sum & 0xff) << 8) << 16 | 0x063f)) {
            fail("checksum %#x becomes %#x", checksum, after);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (int round = 0; round < 300; round++) {
        check_begin(draw);
        check_spans(draw);
        check_headers(draw);
        check_lookup(draw);
        if (round % 10 == 0) {
            check_classes(draw);
        }
    }
    check_decrement();
    if (swap_bytes(0x01020304) != 0x04030201) {
        fail("bytes are not swapped");
    }
    return 0;
}
