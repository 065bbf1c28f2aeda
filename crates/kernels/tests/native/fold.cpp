// The per-thread functions of fold.h, run over all threads of a group on exact-size heap buffers, against a byte loop.
// Built with AddressSanitizer and UBSan. Argument: the seed.
#include "fold.h"

#include "harness.hpp"

#include <memory>

// The parts of a page, in the order of an entry: current, twin, base, content, origin, and a twin and a base of each donor.
static const u32 PARTS = 5 + 2 * FOLD_DONORS_MAX;
enum { CURRENT, TWIN, BASE, CONTENT, ORIGIN, DONORS };

struct Parts {
    u8 *at[PARTS]; // some are null, some the same
    u64 len;
};

static FoldPage page_of(const Parts &parts)
{
    FoldPage page = {parts.at[CURRENT], parts.at[TWIN], parts.at[BASE], parts.at[CONTENT], parts.at[ORIGIN], {}, {}, parts.len};
    for (u32 i = 0; i < FOLD_DONORS_MAX; i++) {
        page.donor_twin[i] = parts.at[DONORS + 2 * i];
        page.donor_base[i] = parts.at[DONORS + 2 * i + 1];
    }
    return page;
}

// What a byte of the parts is to become, and the flags that it raises.
struct Answer {
    u8 current, twin, base;
    u32 flags;
};

static Answer answer(const Parts &parts, u64 i)
{
    const auto byte = [&](u32 part) { return parts.at[part][i]; };
    u32 flags = 0;
    u8 folded = byte(CONTENT);
    u8 origin = parts.at[ORIGIN] ? byte(ORIGIN) : folded;
    for (u32 d = DONORS; d < PARTS; d += 2) {
        if (!parts.at[d] || byte(d) == byte(d + 1)) {
            continue;
        }
        if (folded == byte(d + 1)) {
            folded = byte(d);
        } else if (folded != byte(d)) {
            flags |= 4;
        }
    }
    flags |= folded != origin ? 1u : 0u;
    bool own = parts.at[TWIN] && byte(CURRENT) != byte(TWIN);
    flags |= own ? 2u : 0u;
    return {own ? byte(CURRENT) : folded, folded, origin, flags};
}

static void check_folded(const Parts &parts, const Answer *answers, u32 found)
{
    u32 flags = 0;
    for (u64 i = 0; i < parts.len; i++) {
        const u8 expected[] = {answers[i].current, answers[i].twin, answers[i].base};
        flags |= answers[i].flags;
        for (u32 part = CURRENT; part <= BASE; part++) {
            if (parts.at[part] && parts.at[part][i] != expected[part]) {
                fail("fold: %llu bytes: byte %llu of part %u is %#x instead of %#x", parts.len, i, part,
                     parts.at[part][i], expected[part]);
            }
        }
    }
    if (found != flags) {
        fail("fold: %llu bytes: the flags are %u instead of %u", parts.len, found, flags);
    }
}

static u32 fold_group(const FoldPage &page)
{
    u32 found = 0;
    for (u32 thread = 0; thread < FOLD_GROUP_SIZE; thread++) {
        found |= fold_thread(&page, thread);
    }
    return found;
}

// Bytes in common, of which in each part none, few, some or all are others.
static void fill(const Parts &parts, Draw &draw)
{
    const u64 changes[] = {0, 0, 3, 64, 256};
    std::unique_ptr<u8[]> common(new u8[parts.len + 1]);
    draw.fill(common.get(), parts.len);
    for (u8 *part : parts.at) {
        u64 changed = changes[draw.below(5)];
        for (u64 i = 0; part && i < parts.len; i++) {
            u8 other = draw.below(2) ? (u8)(common[i] ^ 0x80) : (u8)(common[i] + 1);
            part[i] = draw.below(256) < changed ? other : common[i];
        }
    }
}

static std::unique_ptr<Answer[]> answers(const Parts &parts)
{
    std::unique_ptr<Answer[]> all(new Answer[parts.len + 1]);
    for (u64 i = 0; i < parts.len; i++) {
        all[i] = answer(parts, i);
    }
    return all;
}

// A page with each part in a buffer of its own. `missing`: a bit for the twin, the base, the origin and each donor.
static void check_apart(u64 len, u32 missing, Draw &draw)
{
    std::unique_ptr<ExactBuffer> buffers[PARTS];
    Parts parts = {{}, len};
    for (u32 part = 0; part < PARTS; part++) {
        const int bits[] = {-1, 0, 1, -1, 2};
        int bit = part < DONORS ? bits[part] : 3 + (int)(part - DONORS) / 2;
        if (bit >= 0 && (missing >> bit & 1) != 0) {
            continue;
        }
        buffers[part].reset(new ExactBuffer(len));
        parts.at[part] = buffers[part]->data();
    }
    fill(parts, draw);
    auto expected = answers(parts);
    // What is only written holds the complement of the answer.
    for (u64 i = 0; i < len; i++) {
        if (parts.at[BASE]) {
            parts.at[BASE][i] = (u8)~expected[i].base;
        }
        if (!parts.at[TWIN]) {
            parts.at[CURRENT][i] = (u8)~expected[i].current;
        }
    }
    check_folded(parts, expected.get(), fold_group(page_of(parts)));
}

// A page whose own twin and base are those of a donor, or content and origin, or that is folded in place, by an entry
// with offsets in one buffer.
static void check_shared(u64 len, u32 kind, Draw &draw)
{
    const u64 shift = 16 * draw.below(3), stride = (len + 15) / 16 * 16;
    ExactBuffer memory(shift + stride * PARTS);
    u64 places[PARTS];
    for (u32 part = 0; part < PARTS; part++) {
        places[part] = stride * part;
    }
    if (kind == 0) {
        places[TWIN] = FOLD_NONE;
        places[CONTENT] = places[CURRENT];
    } else if (kind == 1) {
        places[CONTENT] = places[TWIN];
        places[ORIGIN] = places[BASE];
    } else {
        u32 donor = DONORS + 2 * (u32)draw.below(FOLD_DONORS_MAX);
        places[donor] = places[TWIN];
        places[donor + 1] = places[BASE];
    }
    Parts parts = {{}, len};
    for (u32 part = 0; part < PARTS; part++) {
        parts.at[part] = places[part] == FOLD_NONE ? nullptr : memory.data() + shift + places[part];
    }
    fill(parts, draw);
    auto expected = answers(parts);
    FoldEntry entry = {places[CURRENT], places[TWIN], places[BASE], places[CONTENT], places[ORIGIN], len, {}};
    for (u32 i = 0; i < FOLD_DONORS_MAX; i++) {
        entry.donors[i] = {places[DONORS + 2 * i], places[DONORS + 2 * i + 1]};
    }
    FoldPage page;
    fold_page(memory.data(), shift, &entry, &page);
    check_folded(parts, expected.get(), fold_group(page));
}

// Symptom looked for: a store between reading a page and exchanging its words is lost.
static void check_stores_between(Draw &draw)
{
    for (int round = 0; round < 10000; round++) {
        ExactBuffer current(16), twin(16), content(16);
        Parts parts = {{current.data(), twin.data(), nullptr, content.data()}, 16};
        fill(parts, draw);
        FoldPage page = page_of(parts);
        FoldLane lane;
        fold_load(&page, 0, &lane);
        u8 stored[16];
        for (u32 i = 0; i < 16; i++) {
            stored[i] = draw.below(3) == 0 ? 1 : 0;
            current.data()[i] = (u8)(current.data()[i] + 77 * stored[i]);
        }
        u8 now[16], old[16];
        memcpy(now, current.data(), 16);
        memcpy(old, twin.data(), 16);
        fold_lane(&page, 0, &lane);
        for (u32 i = 0; i < 16; i++) {
            u8 expected = now[i] != old[i] ? now[i] : content.data()[i];
            if (current.data()[i] != expected) {
                fail("fold: byte %u was stored meanwhile: %u, and is %#x instead of %#x", i, stored[i],
                     current.data()[i], expected);
            }
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    const u64 sizes[] = {0, 1, 15, 16, 17, 31, 4095, 4096, 4097, 8191, 8192, 8193, 12304, 65536, 65553};
    const u32 all_missing = (1u << (3 + FOLD_DONORS_MAX)) - 1;
    for (u64 len : sizes) {
        check_apart(len, 0, draw);
        check_apart(len, all_missing, draw);
        for (u32 kind = 0; kind < 3; kind++) {
            check_shared(len, kind, draw);
        }
    }
    for (u32 missing = 0; missing <= all_missing; missing++) {
        check_apart(300, missing, draw);
    }
    for (int i = 0; i < 300; i++) {
        check_apart(draw.below(6000), (u32)draw.below(all_missing + 1), draw);
        check_shared(draw.below(6000), (u32)draw.below(3), draw);
    }
    check_stores_between(draw);
    return 0;
}
