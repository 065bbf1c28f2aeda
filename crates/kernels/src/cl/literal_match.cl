/* Literals in the packets of a batch: `literal_begin_packets` has a thread for each packet and goes first, `literal_match` one for
 * each unit of the variable part; groups take tiles of so many units as they have threads, until there are no more. */
#include "literal_match.h"

KERNEL void literal_begin_packets(GLOBAL u8 *output, GLOBAL u32 *hits, const LiteralMatchParams params)
{
    u64 packet = packet_of_thread();
    if (packet < params.rows.count) {
        literal_clear(&params, output, hits, (u32)packet);
    }
}

KERNEL void literal_match(GLOBAL const u8 *input, GLOBAL u8 *output, GLOBAL const u32 *image, GLOBAL u32 *hits,
                          const LiteralMatchParams params)
{
    LOCAL_VAR u32 quads[LITERAL_QUAD_WORDS];
    LOCAL_VAR u32 pairs[LITERAL_PAIR_WORDS];
    LOCAL_VAR u32 singles[LITERAL_SINGLE_WORDS];
    LOCAL_VAR u32 single_bits[8];
    LOCAL_VAR u32 classes[LITERAL_CLASS_WORDS];
    LOCAL_VAR u64 stage[LITERAL_STAGE];
    LOCAL_VAR u32 edges[2];
    LOCAL_VAR u32 staged;
    LOCAL_VAR u32 single_count;
    LOCAL_VAR u32 base;
    LiteralSearch search;
    u32 thread = thread_in_group();
    u32 bytes = (u32)params.rows.span_bytes;
    u32 tile;
    u32 i;

    for (i = thread; i < LITERAL_QUAD_WORDS; i += LITERAL_GROUP_SIZE) {
        quads[i] = image[image[LITERAL_QUADS] + i];
    }
    for (i = thread; i < LITERAL_PAIR_WORDS; i += LITERAL_GROUP_SIZE) {
        pairs[i] = image[image[LITERAL_PAIRS] + i];
    }
    singles[thread] = image[image[LITERAL_SINGLES] + thread];
    if (thread < LITERAL_CLASS_WORDS) {
        classes[thread] = image[LITERAL_CLASSES + thread];
    }
    group_barrier(); /* All tables are there, but for the bits of one. */
    if (thread < 8) {
        u32 bits = 0;
        for (i = 0; i < 32; i++) {
            bits |= (singles[thread * 32 + i] != 0 ? 1u : 0u) << i;
        }
        single_bits[thread] = bits;
    }
    if (params.payload != 0) {
        for (i = group_index() * LITERAL_GROUP_SIZE + thread; i < params.rows.count; i += group_count() * LITERAL_GROUP_SIZE) {
            literal_refuse(&params, input, output, hits, i);
        }
    }
    search.input = input;
    search.output = output;
    search.image = image;
    search.hits = hits;
    search.classes = classes;
    search.singles = singles;
    search.stage = stage;
    search.slots = (LOCAL u32 *)stage;
    search.staged = &staged;
    for (tile = group_index(); tile < params.tiles; tile += group_count()) {
        u32 unit = tile * LITERAL_TILE_BYTES + thread * LITERAL_UNIT_BYTES;
        u32 words[9];
        u32 here = 0;
        u32 walks = 0;
        u32 count;
        u32 place_of_singles = 0;
        LiteralPlace place;

        if (thread < 2) {
            u32 edge = tile * LITERAL_TILE_BYTES + thread * (LITERAL_TILE_BYTES - 1);
            edges[thread] = literal_packet_at(&params.rows, input, 0, params.rows.count, edge);
        } else if (thread == 2) {
            staged = 0;
            single_count = 0;
        }
        if ((params.mode & LITERAL_ONCE) != 0) {
            for (i = thread; i < 2 * LITERAL_SLOTS; i += LITERAL_GROUP_SIZE) {
                search.slots[i] = LITERAL_EMPTY;
            }
        }
        group_barrier(); /* The tile's packets are known, and nothing is counted yet. */
        search.first = edges[0];
        search.last = edges[1];
        literal_load(input + params.rows.span_at, unit, bytes, words);
        literal_filter(words, single_bits, pairs, quads, &here, &walks);
        count = literal_unit(&params, &search, unit, &here, walks, &place);
        if (count != 0) {
            place_of_singles = local_take(&single_count, count);
        }
        group_barrier(); /* All hits are counted. */
        if ((params.mode & LITERAL_ONCE) != 0) {
            u32 kept = literal_kept(search.slots, thread);
            u32 place_of_kept = kept != 0 ? local_take(&staged, kept) : 0;
            group_barrier(); /* All slots are counted. */
            if (thread == 0) {
                base = staged != 0 ? global_take(hits, staged) : 0;
            }
            group_barrier(); /* The hits have their place. */
            literal_put_kept(&params, &search, thread, base + place_of_kept);
        } else if ((params.mode & LITERAL_LIST) != 0) {
            u32 waiting = staged < LITERAL_STAGE ? staged : LITERAL_STAGE;
            if (thread == 0) {
                base = single_count + waiting != 0 ? global_take(hits, single_count + waiting) : 0;
            }
            group_barrier(); /* The hits have their place. */
            literal_put_singles(&params, &search, unit, here, &place, base + place_of_singles);
            for (i = thread; i < waiting; i += LITERAL_GROUP_SIZE) {
                literal_put(hits, params.room, base + single_count + i, stage[i]);
            }
        }
        group_barrier(); /* Nobody needs the counts or the edges any more. */
    }
}
