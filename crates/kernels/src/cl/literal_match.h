/* Literals searched for in the packets of a batch, per-thread part.
 *
 * The variable part is cut into units of 32 bytes, whatever packets they are of: a thread takes a unit, and reports the
 * literals that begin in it. So a few long packets occupy the device as well as many short ones, and threads beside each
 * other read words beside each other.
 *
 *   filter   for each byte of the unit: may a literal begin here? Three bitmaps in group memory tell, of literals of
 *            one byte (exactly), by the first two bytes of those of two and three, and by a sum of four of longer ones
 *   place    the packet that a byte is of: the last one that begins at or before it, by halving. Packets lie in the
 *            variable part in their order. What of the packet is searched follows from its headers
 *   walk     through the automaton (Aho-Corasick) from where a literal may begin. It goes on behind the unit while one
 *            that began inside is under way; back near the root it goes on where the filter next says that one may begin
 *
 * Literals of one byte are in a table by the byte, and not in the automaton: in text they are at every other place.
 *
 * A hit is a u64: where it ends, in bits 16 to 31, from the begin of what is searched; the literal's rank in bits 0 to 15
 * (longer ones first, then by number); the packet in bits 32 to 63. Sorted, hits are in the order in which one search
 * from the packet's begin would find them. A packet that the processor has to search has LITERAL_UNSEARCHED in the place
 * of end and rank.
 *
 * Letters are folded, by the filter roughly (bit 5 of any byte is left out), by the automaton exactly; a literal that
 * regards their case is compared when it was found.
 *
 * Each literal of a packet but once, if LITERAL_ONCE is asked for: a group puts what it finds in a tile into a hash table in
 * its memory, with where it ends first, and lists that. So what a packet has in several tiles is listed for each of them, and
 * what finds no slot in the table is listed as it is found: at least once, and hardly ever oftener. With LITERAL_ONE, a packet
 * has one slot for all of its literals, and the first of them is in it.
 */
#ifndef BIFOLIO_LITERAL_MATCH_H
#define BIFOLIO_LITERAL_MATCH_H

#include "packet_rows.h"

#define LITERAL_GROUP_SIZE 256u
#define LITERAL_UNIT_BYTES 32u
#define LITERAL_TILE_BYTES (LITERAL_GROUP_SIZE * LITERAL_UNIT_BYTES)
/* Hits of a group that wait in group memory for their place in the list. */
#define LITERAL_STAGE 1024u
/* Slots of the table of LITERAL_ONCE, which is in the same memory: first what they are of, then the first such hit. */
#define LITERAL_SLOTS LITERAL_STAGE
#define LITERAL_SLOT_SHIFT 22u
#define LITERAL_PROBES 32u
#define LITERAL_EMPTY 0xffffffffu

/* Words of the image before the root, which follows the classes of bytes, four a word. */
#define LITERAL_PATTERNS 2u
#define LITERAL_SINGLES 4u
#define LITERAL_PAIRS 5u
#define LITERAL_QUADS 6u
#define LITERAL_CLASSES 8u
#define LITERAL_CLASS_WORDS 64u
#define LITERAL_ROOT (LITERAL_CLASSES + LITERAL_CLASS_WORDS)

/* The header of a state. */
#define LITERAL_COUNT 0xffu
#define LITERAL_DENSE 0xffu
#define LITERAL_RECORD_BIT 8u
#define LITERAL_FAIL_BIT 9u
#define LITERAL_CLASS_SHIFT 16u
#define LITERAL_DEPTH_SHIFT 24u
/* So deep or deeper. */
#define LITERAL_DEEP 0xffu

/* In the table of literals: letters' case counts. */
#define LITERAL_CASED (1u << 31)
/* In the table of literals of one byte: a record of several. */
#define LITERAL_SEVERAL (1u << 31)

/* Tables of the filter, in words. */
#define LITERAL_SINGLE_WORDS 256u
#define LITERAL_PAIR_WORDS 512u
#define LITERAL_QUAD_WORDS 4096u
#define LITERAL_QUAD_SHIFT 15u
#define LITERAL_QUAD_FACTOR 0x9e3779b1u
/* Bytes by which the filter tells longer literals: states less deep may be of one that the filter refuses. */
#define LITERAL_QUAD_BYTES 4u

/* Values of `mode`. */
#define LITERAL_LIST 1u
#define LITERAL_FIRST 2u
/* With LITERAL_LIST. */
#define LITERAL_ONCE 4u
/* With LITERAL_ONCE. */
#define LITERAL_ONE 8u

/* In the place of end and rank: nothing was found, or the processor has to search. */
#define LITERAL_NONE 0xffffffffu
#define LITERAL_UNSEARCHED 0xfffffffeu

/* The list of hits: a counter, a word that is not 0 where hits had no room, two words more, hits. */
#define LITERAL_LIST_BYTES 16u

typedef struct {
    PacketRows rows;
    u32 mode;
    u32 payload; /* what is searched: 0 the whole span, 1 what is behind the transport header */
    u32 word;    /* LITERAL_FIRST: the output word of the first hit */
    u32 slot;    /* LITERAL_FIRST: the byte of output rows that is set where there is one; or PACKET_NONE */
    u32 hit;     /* LITERAL_FIRST: what it is set to */
    u32 room;    /* LITERAL_LIST: for so many hits */
    u32 tiles;   /* of the variable part */
    u32 reserved;
} LiteralMatchParams;

STATIC_ASSERT(sizeof(LiteralMatchParams) == 112, literal_match_params_match_rust);

/* All that a search needs. */
typedef struct {
    GLOBAL const u8 *input;
    GLOBAL u8 *output;
    GLOBAL const u32 *image;
    GLOBAL u32 *hits;
    LOCAL const u32 *classes; /* four a word */
    LOCAL const u32 *singles;
    LOCAL u64 *stage;
    LOCAL u32 *slots; /* the same memory */
    LOCAL u32 *staged;
    u32 first; /* packets of the tile */
    u32 last;
} LiteralSearch;

/* A packet, and what of it is searched; all places count from the variable part's begin. */
typedef struct {
    u32 packet;
    u32 begin;
    u32 next; /* where the next one begins */
    u32 from;
    u32 to;
    u32 best; /* LITERAL_FIRST: its first hit in this unit */
} LiteralPlace;

/* --- filter --- */

/* Bytes without bit 5, in 7 bits each. */
FN u32 literal_fold(u32 word) { return (word & 0x1f1f1f1fu) | (word >> 1 & 0x60606060u); }
FN u32 literal_pair(u32 folded) { return (folded & 0x7f) | (folded >> 1 & 0x3f80); }
FN u32 literal_quad(u32 folded) { return folded * LITERAL_QUAD_FACTOR >> LITERAL_QUAD_SHIFT; }
FN u32 literal_bit(LOCAL const u32 *bitmap, u32 at) { return bitmap[at >> 5] >> (at & 31) & 1; }

/* The 36 bytes of a unit and behind it, with zeros behind the end. */
FN void literal_load(GLOBAL const u8 *spans, u32 at, u32 bytes, PRIVATE u32 *words)
{
    u32 i;
    if (at + LITERAL_UNIT_BYTES + 4 <= bytes) {
        Word16 low = load16_in_order(spans + at);
        Word16 high = load16_in_order(spans + at + 16);
        words[0] = (u32)low.lo;
        words[1] = (u32)(low.lo >> 32);
        words[2] = (u32)low.hi;
        words[3] = (u32)(low.hi >> 32);
        words[4] = (u32)high.lo;
        words[5] = (u32)(high.lo >> 32);
        words[6] = (u32)high.hi;
        words[7] = (u32)(high.hi >> 32);
        words[8] = *(GLOBAL const u32 *)(spans + at + 32);
        return;
    }
    UNROLL
    for (i = 0; i < 9; i++) {
        words[i] = at + i * 4 + 4 <= bytes ? *(GLOBAL const u32 *)(spans + at + i * 4) : 0;
    }
}

/* Where a literal of one byte is, and where a longer one may begin. */
FN void literal_filter(PRIVATE const u32 *words, LOCAL const u32 *single_bits, LOCAL const u32 *pairs,
                       LOCAL const u32 *quads, PRIVATE u32 *singles, PRIVATE u32 *walks)
{
    u32 here = 0;
    u32 may = 0;
    u32 i;
    u32 byte;
    UNROLL
    for (i = 0; i < 8; i++) {
        u32 folded = literal_fold(words[i]);
        u32 next = literal_fold(words[i + 1]);
        UNROLL
        for (byte = 0; byte < 4; byte++) {
            u32 four = byte == 0 ? folded : shift_in(next, folded, byte == 0 ? 1 : 32 - 8 * byte);
            u32 begins = literal_bit(pairs, literal_pair(four)) | literal_bit(quads, literal_quad(four));
            here |= literal_bit(single_bits, words[i] >> (8 * byte) & 0xff) << (4 * i + byte);
            may |= begins << (4 * i + byte);
        }
    }
    *singles = here;
    *walks = may;
}

/* --- place --- */

/* How far a place is behind another one; 0 where it is before it. Compilers make another form an intrinsic that Oclgrind does
 * not know. */
FN u32 literal_behind(u32 place, u32 other)
{
    u32 distance = place - other;
    return distance & ((distance >> 31) - 1);
}

/* Where a packet begins, at most at the end of the variable part. */
FN u32 literal_begin(PRIVATE const PacketRows *rows, GLOBAL const u8 *input, u32 packet)
{
    u64 begin = (u64)packet_input(rows, input, packet)[1] * 4;
    return begin < rows->span_bytes ? (u32)begin : (u32)rows->span_bytes;
}

/* The last packet from `low` to before `high` that begins at or before a place; `low` where none does. */
FN u32 literal_packet_at(PRIVATE const PacketRows *rows, GLOBAL const u8 *input, u32 low, u32 high, u32 at)
{
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (literal_begin(rows, input, middle) <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Bytes of headers before the payload in a packet's span; LITERAL_NONE where headers contradict each other. `len` is that
 * of the span, and becomes where the payload ends. */
FN u32 literal_headers(PRIVATE const PacketRows *rows, GLOBAL const u32 *in, GLOBAL const u8 *span, PRIVATE u32 *len)
{
    GLOBAL const u32 *network = in + rows->network;
    u32 captured = packet_captured(in[0]);
    u32 first;
    u32 options;
    u32 body;
    u32 header = 0;
    u32 protocol;
    if (!packet_has_header(in[0])) {
        return LITERAL_NONE;
    }
    first = network[0];
    options = (first & 15) * 4;
    body = (first >> 8 & 0xff00) | first >> 24;
    if ((first >> 4 & 15) != 4 || options < 20 || body < options || captured < options) {
        return LITERAL_NONE;
    }
    options -= 20;
    body -= 20;
    *len = body < *len ? body : *len;
    /* A row that lies has less than it says. */
    options = options < *len ? options : *len;
    body = *len - options;
    protocol = network[2] >> 8 & 0xff;
    if (((network[1] >> 8 & 0x1f00) | network[1] >> 24) != 0) {
        header = 0; /* Not the first fragment. */
    } else if (protocol == 1 || protocol == 17) {
        header = 8;
    } else if (protocol == 6 && body >= 20) {
        header = span[options + 12] / 16u * 4;
        header = header >= 20 ? header : 0;
    }
    /* A header that is not all there is searched. */
    return options + (header <= body ? header : 0);
}

/* What is searched of a packet that begins at `begin`, from `from` to before `to`: nothing where it takes no part. Says
 * whether the processor has to search it, too. */
FN u32 literal_range(PRIVATE const LiteralMatchParams *params, GLOBAL const u8 *input, GLOBAL u8 *output, u32 packet,
                     u32 begin, PRIVATE u32 *from, PRIVATE u32 *to)
{
    GLOBAL const u32 *in = packet_input(&params->rows, input, packet);
    u32 captured = packet_captured(in[0]);
    u32 room = (u32)params->rows.span_bytes - begin;
    u32 len = literal_behind(captured, 20);
    u32 skipped = 0;
    *from = begin;
    *to = begin;
    if (!packet_takes_part(&params->rows, packet_output(&params->rows, output, packet))) {
        return 0;
    }
    len = len < room ? len : room;
    if (params->payload != 0) {
        skipped = literal_headers(&params->rows, in, input + (params->rows.span_at + begin), &len);
        if (skipped == LITERAL_NONE) {
            return 1;
        }
    }
    *from = begin + skipped;
    *to = begin + len;
    return 0;
}

/* The place of a byte, from packet `low` of the tile on. */
FN void literal_place(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search, u32 low, u32 at,
                      PRIVATE LiteralPlace *place)
{
    u32 packet = literal_packet_at(&params->rows, search->input, low, search->last + 1, at);
    place->packet = packet;
    place->begin = literal_begin(&params->rows, search->input, packet);
    place->next = (u32)params->rows.span_bytes;
    if (packet + 1 < params->rows.count) {
        place->next = literal_begin(&params->rows, search->input, packet + 1);
    }
    place->best = LITERAL_NONE;
    literal_range(params, search->input, search->output, packet, place->begin, &place->from, &place->to);
}

/* Bits of a unit at `at` for the places from `from` to before `to`. */
FN u32 literal_bits(u32 at, u32 from, u32 to)
{
    u32 low = literal_behind(from, at);
    u32 high = literal_behind(to, at);
    u32 below = low < 32 ? (1u << low) - 1 : 0xffffffffu;
    return (high < 32 ? (1u << high) - 1 : 0xffffffffu) & ~below;
}

/* --- hits --- */

FN u64 literal_hit(u32 packet, u32 what) { return (u64)packet << 32 | what; }

/* Puts a hit where the counter had come to. */
FN void literal_put(GLOBAL u32 *hits, u32 room, u32 at, u64 hit)
{
    if (at < room) {
        store8((GLOBAL u8 *)hits + (LITERAL_LIST_BYTES + (u64)at * 8), hit);
    } else {
        /* The counter may come around. */
        global_swap(hits + 1, 0, 1);
    }
}

/* Keeps a hit, where none before it is kept with this key; whether there was a slot for it. */
FN u32 literal_keep(LOCAL u32 *slots, u32 key, u32 what)
{
    u32 at = key * LITERAL_QUAD_FACTOR >> LITERAL_SLOT_SHIFT;
    u32 i;
    for (i = 0; i < LITERAL_PROBES; i++) {
        u32 found = local_swap(slots + at, LITERAL_EMPTY, key);
        if (found == LITERAL_EMPTY || found == key) {
            local_min(slots + LITERAL_SLOTS + at, what);
            return 1;
        }
        at = (at + 1) & (LITERAL_SLOTS - 1);
    }
    return 0;
}

/* How many slots of a thread's are in use. */
FN u32 literal_kept(LOCAL const u32 *slots, u32 thread)
{
    u32 count = 0;
    u32 at;
    for (at = thread; at < LITERAL_SLOTS; at += LITERAL_GROUP_SIZE) {
        count += slots[at] != LITERAL_EMPTY ? 1 : 0;
    }
    return count;
}

/* Puts what a thread's slots have into the list, from `to` on. */
FN void literal_put_kept(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search, u32 thread, u32 to)
{
    u32 at;
    for (at = thread; at < LITERAL_SLOTS; at += LITERAL_GROUP_SIZE) {
        u32 key = search->slots[at];
        if (key != LITERAL_EMPTY) {
            u64 hit = literal_hit(search->first + (key >> 16), search->slots[LITERAL_SLOTS + at]);
            literal_put(search->hits, params->room, to++, hit);
        }
    }
}

/* Reports a literal that ends before `end`. */
FN void literal_report(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search,
                       PRIVATE LiteralPlace *place, u32 end, u32 rank)
{
    u32 what = (end - place->from) << 16 | rank;
    if ((params->mode & LITERAL_FIRST) != 0 && what < place->best) {
        place->best = what;
    }
    if ((params->mode & LITERAL_LIST) != 0) {
        u64 hit = literal_hit(place->packet, what);
        u32 at = LITERAL_STAGE;
        if ((params->mode & LITERAL_ONCE) != 0) {
            /* A key is not that of an empty slot. */
            u32 packet = place->packet - search->first;
            u32 own = (params->mode & LITERAL_ONE) != 0 ? 0 : rank;
            if (packet < 0xffff && literal_keep(search->slots, packet << 16 | own, what) != 0) {
                return;
            }
        } else {
            at = local_take(search->staged, 1);
        }
        if (at < LITERAL_STAGE) {
            search->stage[at] = hit;
        } else {
            literal_put(search->hits, params->room, global_take(search->hits, 1), hit);
        }
    }
}

/* --- walk --- */

/* The state that follows another one, whose header is given, by a class. */
FN u32 literal_step(GLOBAL const u32 *image, u32 state, u32 header, u32 class_of_byte)
{
    for (;;) {
        u32 has_fail = header >> LITERAL_FAIL_BIT & 1;
        u32 row = state + 1 + (header >> LITERAL_RECORD_BIT & 1) + has_fail;
        u32 count = header & LITERAL_COUNT;
        u32 i;
        if (count == LITERAL_DENSE) {
            return image[row + class_of_byte];
        }
        if (count == 1 && (header >> LITERAL_CLASS_SHIFT & 0xff) == class_of_byte) {
            return row;
        }
        for (i = 0; count > 1 && i < count; i++) {
            if ((image[row + i / 4] >> (8 * (i % 4)) & 0xff) == class_of_byte) {
                return image[row + (count + 3) / 4 + i];
            }
        }
        state = has_fail != 0 ? image[state + 1] : LITERAL_ROOT;
        header = image[state];
    }
}

/* Whether a literal whose letters were found has their case, too. */
FN u32 literal_is_same(GLOBAL const u32 *image, GLOBAL const u8 *text, u32 len, u32 at)
{
    u32 i;
    for (i = 0; i < len; i++) {
        if (text[i] != (image[at + i / 4] >> (8 * (i % 4)) & 0xff)) {
            return 0;
        }
    }
    return 1;
}

/* Reports what a record and those behind it have, as far as it begins before `limit`. */
FN void literal_record(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search,
                       PRIVATE LiteralPlace *place, u32 record, u32 end, u32 limit)
{
    GLOBAL const u32 *image = search->image;
    GLOBAL const u8 *spans = search->input + params->rows.span_at;
    while (record != 0) {
        u32 count = image[record];
        u32 i;
        for (i = 0; i < count; i++) {
            u32 rank = image[record + 2 + i];
            u32 entry = image[LITERAL_PATTERNS] + 2 * rank;
            u32 len = image[entry] & ~LITERAL_CASED;
            if (end - len >= limit) {
                return; /* Those behind it are shorter. */
            }
            if ((image[entry] & LITERAL_CASED) == 0 ||
                literal_is_same(image, spans + (end - len), len, image[entry + 1])) {
                literal_report(params, search, place, end, rank);
            }
        }
        record = image[record + 1];
    }
}

/* Reports the literals of two bytes and more that begin in the unit at `unit` where `walks`, of this packet alone and not
 * 0, says that they may. */
FN void literal_walk(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search,
                     PRIVATE LiteralPlace *place, u32 unit, u32 walks)
{
    GLOBAL const u32 *image = search->image;
    GLOBAL const u8 *spans = search->input + params->rows.span_at;
    u32 root = image[LITERAL_ROOT];
    u32 state = LITERAL_ROOT;
    u32 header = root;
    u32 at = unit + lowest_bit(walks);
    u32 told = 0; /* What ends there or before was reported. */
    while (at < place->to) {
        u32 byte = spans[at];
        u32 depth;
        state = literal_step(image, state, header, search->classes[byte / 4] >> (8 * (byte % 4)) & 0xff);
        header = image[state];
        at++;
        if ((header >> LITERAL_RECORD_BIT & 1) != 0 && at > told) {
            u32 record = image[state + 1 + (header >> LITERAL_FAIL_BIT & 1)];
            literal_record(params, search, place, record, at, unit + LITERAL_UNIT_BYTES);
            if (params->mode == LITERAL_FIRST && place->best != LITERAL_NONE) {
                return; /* What is found later ends later. */
            }
        }
        depth = header >> LITERAL_DEPTH_SHIFT;
        if (depth < LITERAL_QUAD_BYTES) {
            u32 next;
            walks &= literal_bits(unit, at - depth, unit + LITERAL_UNIT_BYTES);
            if (walks == 0) {
                return;
            }
            next = unit + lowest_bit(walks);
            if (next != at - depth) {
                told = at;
                at = next;
                state = LITERAL_ROOT;
                header = root;
            }
        } else if (depth < LITERAL_DEEP && at - depth >= unit + LITERAL_UNIT_BYTES) {
            return;
        }
    }
}

/* How many literals of one byte there are by an entry of their table, and the first or only one's rank. */
FN u32 literal_single_count(GLOBAL const u32 *image, u32 entry)
{
    return (entry & LITERAL_SEVERAL) != 0 ? image[entry & ~LITERAL_SEVERAL] : 1;
}
FN u32 literal_single_rank(GLOBAL const u32 *image, u32 entry, u32 i)
{
    return (entry & LITERAL_SEVERAL) != 0 ? image[(entry & ~LITERAL_SEVERAL) + 1 + i] : entry - 1;
}

/* Counts literals of one byte for the list, or finds the first. Where each is listed once, they are reported at once. */
FN u32 literal_count_singles(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search,
                             PRIVATE LiteralPlace *place, u32 unit, u32 singles)
{
    GLOBAL const u8 *spans = search->input + params->rows.span_at;
    u32 count = 0;
    for (; singles != 0; singles &= singles - 1) {
        u32 at = unit + lowest_bit(singles);
        u32 entry = search->singles[spans[at]];
        u32 own = literal_single_count(search->image, entry);
        if ((params->mode & LITERAL_ONCE) != 0) {
            u32 i;
            for (i = 0; i < own; i++) {
                literal_report(params, search, place, at + 1, literal_single_rank(search->image, entry, i));
            }
            continue;
        }
        count += own;
        if ((params->mode & LITERAL_FIRST) != 0) {
            u32 what = (at + 1 - place->from) << 16 | literal_single_rank(search->image, entry, 0);
            place->best = what < place->best ? what : place->best;
            if (params->mode == LITERAL_FIRST) {
                return 0;
            }
        }
    }
    return count;
}

/* Leaves the first hit of a packet in its output row. */
FN void literal_leave(PRIVATE const LiteralMatchParams *params, GLOBAL u8 *output, PRIVATE const LiteralPlace *place)
{
    GLOBAL u32 *out = packet_output(&params->rows, output, place->packet);
    if (place->best != LITERAL_NONE && global_lower(out + params->word, place->best) == LITERAL_NONE &&
        params->slot != PACKET_NONE) {
        packet_set_slot(out, params->slot, params->hit);
    }
}

/* Searches a unit. `singles` keeps what is searched, and how many hits these are is the result: they go into the list
 * when it is known where, unless each literal goes there once. `place` is that of the last byte looked at. */
FN u32 literal_unit(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search, u32 unit,
                    PRIVATE u32 *singles, u32 walks, PRIVATE LiteralPlace *place)
{
    u32 left = *singles | walks;
    u32 low = search->first;
    u32 kept = 0;
    u32 count = 0;
    place->begin = 1;
    place->next = 0;
    while (left != 0) {
        u32 at = unit + lowest_bit(left);
        u32 own;
        literal_place(params, search, low, at, place);
        own = literal_bits(unit, at > place->from ? at : place->from, place->to) & left;
        if ((own & walks) != 0) {
            literal_walk(params, search, place, unit, own & walks);
        }
        count += literal_count_singles(params, search, place, unit, own & *singles);
        kept |= own & *singles;
        if ((params->mode & LITERAL_FIRST) != 0) {
            literal_leave(params, search->output, place);
        }
        low = place->packet;
        left &= literal_bits(unit, at + 1 > place->next ? at + 1 : place->next, unit + LITERAL_UNIT_BYTES);
    }
    *singles = kept;
    return count;
}

/* Puts the literals of one byte of a unit into the list, from `to` on. */
FN void literal_put_singles(PRIVATE const LiteralMatchParams *params, PRIVATE const LiteralSearch *search, u32 unit,
                            u32 singles, PRIVATE LiteralPlace *place, u32 to)
{
    GLOBAL const u8 *spans = search->input + params->rows.span_at;
    for (; singles != 0; singles &= singles - 1) {
        u32 at = unit + lowest_bit(singles);
        u32 entry = search->singles[spans[at]];
        u32 count = literal_single_count(search->image, entry);
        u32 i;
        if (at < place->begin || at >= place->next) {
            literal_place(params, search, search->first, at, place);
        }
        for (i = 0; i < count; i++) {
            u32 what = (at + 1 - place->from) << 16 | literal_single_rank(search->image, entry, i);
            literal_put(search->hits, params->room, to++, literal_hit(place->packet, what));
        }
    }
}

/* Before the search: the packet's output word, and the list. */
FN void literal_clear(PRIVATE const LiteralMatchParams *params, GLOBAL u8 *output, GLOBAL u32 *hits, u32 packet)
{
    if ((params->mode & LITERAL_FIRST) != 0) {
        packet_output(&params->rows, output, packet)[params->word] = LITERAL_NONE;
    }
    if ((params->mode & LITERAL_LIST) != 0 && packet == 0) {
        hits[0] = 0;
        hits[1] = 0;
    }
}

/* Says of a packet that the processor has to search it, where that is so. */
FN void literal_refuse(PRIVATE const LiteralMatchParams *params, GLOBAL const u8 *input, GLOBAL u8 *output,
                       GLOBAL u32 *hits, u32 packet)
{
    u32 from;
    u32 to;
    u32 begin = literal_begin(&params->rows, input, packet);
    if (literal_range(params, input, output, packet, begin, &from, &to) == 0) {
        return;
    }
    if ((params->mode & LITERAL_FIRST) != 0) {
        packet_output(&params->rows, output, packet)[params->word] = LITERAL_UNSEARCHED;
    }
    if ((params->mode & LITERAL_LIST) != 0) {
        literal_put(hits, params->room, global_take(hits, 1), literal_hit(packet, LITERAL_UNSEARCHED));
    }
}

#endif
