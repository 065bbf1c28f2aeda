// The per-thread functions of literal_match.h on exact-size heap buffers: hits against a search for every literal at every
// place, and rows that lie, which must not make it read or write outside. Built with AddressSanitizer and UBSan. Argument:
// the seed.
#include "literal_match.h"

#include "harness.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

struct Literal {
    std::string bytes;
    bool nocase;
};

static u8 lower(u8 byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }

static std::string folded(const std::string &bytes)
{
    std::string all = bytes;
    for (char &byte : all) {
        byte = (char)lower((u8)byte);
    }
    return all;
}

// An automaton whose states are all rows, with a class for each folded byte.
static std::vector<u32> image_of(const std::vector<Literal> &ranked)
{
    std::vector<std::string> prefixes = {""};
    for (const Literal &literal : ranked) {
        for (size_t len = 1; literal.bytes.size() > 1 && len <= literal.bytes.size(); len++) {
            prefixes.push_back(folded(literal.bytes.substr(0, len)));
        }
    }
    std::sort(prefixes.begin(), prefixes.end());
    prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
    auto longest = [&](std::string text) {
        while (!std::binary_search(prefixes.begin(), prefixes.end(), text)) {
            text.erase(0, 1);
        }
        return (u32)(std::lower_bound(prefixes.begin(), prefixes.end(), text) - prefixes.begin());
    };
    // All states have a record, an empty one perhaps.
    const u32 state_words = 2 + 256;
    std::vector<u32> image(LITERAL_ROOT), records;
    for (u32 byte = 0; byte < 256; byte++) {
        image[LITERAL_CLASSES + byte / 4] |= (u32)lower((u8)byte) << 8 * (byte % 4);
    }
    u32 records_at = LITERAL_ROOT + state_words * (u32)prefixes.size();
    for (const std::string &prefix : prefixes) {
        u32 depth = std::min((u32)prefix.size(), LITERAL_DEEP);
        image.push_back(LITERAL_DENSE | 1u << LITERAL_RECORD_BIT | depth << LITERAL_DEPTH_SHIFT);
        // The record has the literals of all suffixes, longer ones first.
        std::vector<u32> own;
        for (u32 rank = 0; rank < ranked.size(); rank++) {
            std::string bytes = folded(ranked[rank].bytes);
            bool ends = bytes.size() <= prefix.size() && prefix.substr(prefix.size() - bytes.size()) == bytes;
            if (bytes.size() > 1 && ends) {
                own.push_back(rank);
            }
        }
        // One at a time, since literals of a record have one length.
        image.push_back(own.empty() ? 0 : records_at + (u32)records.size());
        for (size_t i = 0; i < own.size(); i++) {
            u32 next = records_at + (u32)records.size() + 3;
            records.insert(records.end(), {1, i + 1 < own.size() ? next : 0, own[i]});
        }
        for (u32 byte = 0; byte < 256; byte++) {
            image.push_back(LITERAL_ROOT + state_words * longest(prefix + (char)lower((u8)byte)));
        }
    }
    // A record at 0 ends a list, and the header's bit says that there is a word for it.
    image.insert(image.end(), records.begin(), records.end());
    image[LITERAL_SINGLES] = (u32)image.size();
    image.resize(image.size() + LITERAL_SINGLE_WORDS);
    for (u32 byte = 0; byte < 256; byte++) {
        std::vector<u32> own;
        for (u32 rank = 0; rank < ranked.size(); rank++) {
            const Literal &literal = ranked[rank];
            u8 first = (u8)literal.bytes[0];
            if (literal.bytes.size() == 1 && (first == byte || (literal.nocase && lower(first) == lower((u8)byte)))) {
                own.push_back(rank);
            }
        }
        u32 entry = own.size() > 1 ? (u32)image.size() | LITERAL_SEVERAL : own.empty() ? 0 : own[0] + 1;
        image[image[LITERAL_SINGLES] + byte] = entry;
        if (own.size() > 1) {
            image.push_back((u32)own.size());
            image.insert(image.end(), own.begin(), own.end());
        }
    }
    image[LITERAL_PAIRS] = (u32)image.size();
    image[LITERAL_QUADS] = image[LITERAL_PAIRS] + LITERAL_PAIR_WORDS;
    image.resize(image.size() + LITERAL_PAIR_WORDS + LITERAL_QUAD_WORDS);
    for (const Literal &literal : ranked) {
        u32 four = 0;
        for (size_t i = 0; i < 4 && i < literal.bytes.size(); i++) {
            four |= (u32)(u8)literal.bytes[i] << 8 * i;
        }
        four = literal_fold(four);
        bool is_short = literal.bytes.size() < 4;
        u32 bit = is_short ? literal_pair(four) : literal_quad(four);
        if (literal.bytes.size() > 1) {
            image[image[is_short ? LITERAL_PAIRS : LITERAL_QUADS] + bit / 32] |= 1u << bit % 32;
        }
    }
    image[LITERAL_PATTERNS] = (u32)image.size();
    u32 at = (u32)(image.size() + 2 * ranked.size());
    std::vector<u32> texts;
    for (const Literal &literal : ranked) {
        u32 len = (u32)literal.bytes.size();
        image.push_back(len | (literal.nocase ? 0 : LITERAL_CASED));
        image.push_back(at + (u32)texts.size());
        texts.resize(texts.size() + (len + 3) / 4);
        memcpy((u8 *)(texts.data() + texts.size() - (len + 3) / 4), literal.bytes.data(), len);
    }
    image.insert(image.end(), texts.begin(), texts.end());
    return image;
}

static std::string word(Draw &draw, const std::string &alphabet, u64 most)
{
    std::string word;
    for (u64 len = draw.below(most + 1); len > 0; len--) {
        word += alphabet[draw.below(alphabet.size())];
    }
    return word;
}

static std::vector<Literal> draw_literals(Draw &draw, const std::string &alphabet)
{
    std::vector<Literal> literals;
    for (u64 count = draw.below(7); count > 0; count--) {
        std::string bytes = word(draw, alphabet, draw.below(4) ? 5 : 50);
        if (!bytes.empty()) {
            literals.push_back({bytes, draw.below(2) == 0});
        }
    }
    auto is_longer = [](const Literal &a, const Literal &b) { return a.bytes.size() > b.bytes.size(); };
    std::stable_sort(literals.begin(), literals.end(), is_longer);
    return literals;
}

// What the kernel does, one thread after the other.
static void run(const LiteralMatchParams &params, u8 *input, u8 *output, const u32 *image, u32 *hits)
{
    for (u32 packet = 0; packet < params.rows.count; packet++) {
        literal_clear(&params, output, hits, packet);
    }
    for (u32 packet = 0; packet < params.rows.count; packet++) {
        literal_refuse(&params, input, output, hits, packet);
    }
    u32 single_bits[8] = {}, staged, bytes = (u32)params.rows.span_bytes;
    std::vector<u64> stage(LITERAL_STAGE);
    std::vector<u32> slots(2 * LITERAL_SLOTS);
    const u32 *singles = image + image[LITERAL_SINGLES];
    for (u32 byte = 0; byte < 256; byte++) {
        single_bits[byte / 32] |= (singles[byte] != 0 ? 1u : 0u) << byte % 32;
    }
    LiteralSearch search = {input, output, image, hits, image + LITERAL_CLASSES, singles, stage.data(), slots.data(), &staged, 0, 0};
    for (u32 tile = 0; tile < params.tiles; tile++) {
        u32 begin = tile * LITERAL_TILE_BYTES, end = begin + LITERAL_TILE_BYTES - 1;
        search.first = literal_packet_at(&params.rows, input, 0, params.rows.count, begin);
        search.last = literal_packet_at(&params.rows, input, 0, params.rows.count, end);
        staged = 0;
        std::fill(slots.begin(), slots.end(), LITERAL_EMPTY);
        for (u32 thread = 0; thread < LITERAL_GROUP_SIZE; thread++) {
            u32 words[9], here, walks, unit = begin + thread * LITERAL_UNIT_BYTES;
            LiteralPlace place;
            literal_load(input + params.rows.span_at, unit, bytes, words);
            literal_filter(words, single_bits, image + image[LITERAL_PAIRS], image + image[LITERAL_QUADS], &here, &walks);
            u32 count = literal_unit(&params, &search, unit, &here, walks, &place);
            if ((params.mode & LITERAL_LIST) != 0 && (params.mode & LITERAL_ONCE) == 0) {
                literal_put_singles(&params, &search, unit, here, &place, global_take(hits, count));
            }
        }
        for (u32 thread = 0; thread < LITERAL_GROUP_SIZE && (params.mode & LITERAL_ONCE) != 0; thread++) {
            u32 kept = literal_kept(slots.data(), thread);
            literal_put_kept(&params, &search, thread, global_take(hits, kept));
        }
        u32 waiting = std::min(staged, LITERAL_STAGE);
        u32 base = (params.mode & LITERAL_LIST) != 0 ? global_take(hits, waiting) : 0;
        for (u32 i = 0; i < waiting; i++) {
            literal_put(hits, params.room, base + i, stage[i]);
        }
    }
}

static std::vector<u64> naive(const std::vector<Literal> &ranked, const std::string &text, u64 packet)
{
    std::vector<u64> hits;
    for (u64 at = 0; at < text.size(); at++) {
        for (u32 rank = 0; rank < ranked.size(); rank++) {
            const Literal &literal = ranked[rank];
            std::string found = text.substr(at, literal.bytes.size());
            if (found == literal.bytes || (literal.nocase && folded(found) == folded(literal.bytes))) {
                hits.push_back(packet << 32 | (at + literal.bytes.size()) << 16 | rank);
            }
        }
    }
    std::sort(hits.begin(), hits.end());
    return hits;
}

// Of sorted hits, each literal of a packet where it ends first, or of a packet the first alone.
static std::vector<u64> kept(const std::vector<u64> &hits, bool is_one)
{
    std::set<u64> seen;
    std::vector<u64> first;
    for (u64 hit : hits) {
        if (seen.insert((hit >> 32) << 16 | (is_one ? 0 : hit & 0xffff)).second) {
            first.push_back(hit);
        }
    }
    return first;
}

static LiteralMatchParams params_of(u32 count, u64 span_bytes, Draw &draw)
{
    LiteralMatchParams params = {};
    params.rows.count = count;
    params.rows.input_words = 7;
    params.rows.output_words = 3;
    params.rows.spans = PACKET_SPANS_ALL;
    params.rows.network = 2;
    params.rows.test = PACKET_NONE;
    params.rows.span_at = (count * 28 + 15) / 16 * 16;
    params.rows.span_bytes = span_bytes;
    const u32 modes[] = {LITERAL_LIST, LITERAL_FIRST, LITERAL_LIST | LITERAL_FIRST, LITERAL_LIST | LITERAL_ONCE,
                         LITERAL_LIST | LITERAL_ONCE | LITERAL_FIRST, LITERAL_LIST | LITERAL_ONCE | LITERAL_ONE};
    params.mode = modes[draw.below(6)];
    params.word = 1;
    params.slot = 8;
    params.hit = 9;
    params.room = draw.below(4) ? 4000 : (u32)draw.below(3);
    params.tiles = (u32)((span_bytes + LITERAL_TILE_BYTES - 1) / LITERAL_TILE_BYTES);
    return params;
}

static void check(Draw &draw)
{
    const std::string alphabets[] = {"a", "aA", "abAB", "abcdefghij", std::string("\0\xff`@x", 5)};
    const std::string &alphabet = alphabets[draw.below(5)];
    std::vector<Literal> ranked = draw_literals(draw, alphabet);
    std::vector<u32> words = image_of(ranked);
    ExactBuffer image(words.size() * 4);
    memcpy(image.data(), words.data(), image.size());
    std::vector<std::string> texts;
    std::string spans;
    std::vector<u32> rows;
    for (u64 count = draw.below(30); count > 0; count--) {
        texts.push_back(word(draw, alphabet, draw.below(5) ? 40 : draw.below(20) ? 300 : 10000));
        rows.insert(rows.end(), {(u32)texts.back().size() + 20, (u32)spans.size() / 4, 0, 0, 0, 0, 0});
        spans += texts.back();
        spans.resize((spans.size() + 3) / 4 * 4, 'a');
    }
    u32 count = (u32)texts.size();
    LiteralMatchParams params = params_of(count, spans.size(), draw);
    ExactBuffer input(params.rows.span_at + spans.size()), output(count * 12), hits(LITERAL_LIST_BYTES + params.room * 8);
    if (count > 0) {
        memcpy(input.data(), rows.data(), rows.size() * 4);
    }
    memcpy(input.data() + params.rows.span_at, spans.data(), spans.size());
    memset(output.data(), 0xa5, output.size());
    memset(hits.data(), 0, LITERAL_LIST_BYTES);
    run(params, input.data(), output.data(), (u32 *)image.data(), (u32 *)hits.data());

    std::vector<u64> expected;
    for (u32 packet = 0; packet < count; packet++) {
        std::vector<u64> own = naive(ranked, texts[packet], packet);
        expected.insert(expected.end(), own.begin(), own.end());
        u32 first = own.empty() ? LITERAL_NONE : (u32)own[0];
        u32 *row = (u32 *)output.data() + packet * 3;
        if ((params.mode & LITERAL_FIRST) != 0 && (row[1] != first || (u8)row[2] != (own.empty() ? 0xa5 : 9))) {
            fail("the first hit of packet %u is %#x, slot %u, instead of %#x", packet, row[1], row[2] & 0xff, first);
        }
    }
    const u32 *list = (u32 *)hits.data();
    if ((params.mode & LITERAL_LIST) == 0 || count == 0) {
        return;
    }
    bool is_once = (params.mode & LITERAL_ONCE) != 0;
    bool is_one = (params.mode & LITERAL_ONE) != 0;
    size_t least = is_once ? kept(expected, is_one).size() : expected.size();
    if (list[0] < least || list[0] > expected.size() || (list[1] != 0) != (list[0] > params.room)) {
        fail("%u hits are counted instead of %zu to %zu, room for %u", list[0], least, expected.size(), params.room);
    }
    std::vector<u64> found((u64 *)(list + 4), (u64 *)(list + 4) + std::min(list[0], params.room));
    std::sort(found.begin(), found.end());
    if (is_once) {
        found = kept(found, is_one);
        expected = kept(expected, is_one);
    }
    if (list[1] == 0 && found != expected) {
        fail("%zu hits are not those expected", found.size());
    }
}

// Rows of noise, and an image that is right: nothing outside is touched.
static void survive(Draw &draw)
{
    std::vector<u32> words = image_of(draw_literals(draw, "aAb"));
    ExactBuffer image(words.size() * 4);
    memcpy(image.data(), words.data(), image.size());
    u32 count = (u32)draw.below(20);
    std::string text = word(draw, "aAb", 3000);
    text.resize(text.size() / 4 * 4);
    LiteralMatchParams params = params_of(count, text.size(), draw);
    params.payload = (u32)draw.below(2);
    ExactBuffer input(params.rows.span_at + text.size()), output(count * 12), hits(LITERAL_LIST_BYTES + params.room * 8);
    draw.fill(input.data(), params.rows.span_at);
    memcpy(input.data() + params.rows.span_at, text.data(), text.size());
    for (u32 packet = 0; packet < count; packet++) {
        // Places that are mostly inside, in no order, of packets that would be right.
        u32 *row = (u32 *)input.data() + packet * 7;
        row[1] = draw.below(8) ? (u32)draw.below(text.size() / 4 + 2) : (u32)draw.next();
        row[0] = (draw.below(2) ? row[0] & 0xffff : (u32)draw.below(200)) | PACKET_HAS_NETWORK;
        row[2] = draw.below(2) ? row[2] : (0x45u + (u32)draw.below(8)) | 0xff000000u;
        row[3] = draw.below(2) ? row[3] : 0;
        row[4] = draw.below(2) ? row[4] : 0x600u;
    }
    draw.fill(output.data(), output.size());
    memset(hits.data(), 0, LITERAL_LIST_BYTES);
    if (count > 0) {
        run(params, input.data(), output.data(), (u32 *)image.data(), (u32 *)hits.data());
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (int round = 0; round < 300; round++) {
        check(draw);
        survive(draw);
    }
    return 0;
}
