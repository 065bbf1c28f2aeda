// The functions of bifolio_demand.h, called by several threads on a table of exact size, against the
// pages of every byte one by one. Built with AddressSanitizer and UBSan. Argument: the seed.
#include "bifolio_demand.h"

#include "kdef.h"

#include "harness.hpp"

#include <set>
#include <thread>
#include <vector>

struct Question {
    u64 offset, length;
    bool got;
};

static void check(Draw &draw)
{
    u32 shift = 12 + (u32)draw.below(2), items = (u32)draw.below(20);
    u64 length = 1 + draw.below(8u << shift), skew = draw.below(1u << shift);
    u64 pages = ((skew + length - 1) >> shift) + 1;
    u64 done_at = sizeof(bifolio_demand) + pages, items_at = (done_at + items + 7) / 8 * 8;
    ExactBuffer table(items_at + items * 4), file(length);
    memset(table.data(), 0, table.size());
    bifolio_demand *demand = (bifolio_demand *)table.data();
    demand->length = length;
    demand->skew = skew;
    demand->pages_at = sizeof(bifolio_demand);
    demand->done_at = done_at;
    demand->items_at = items_at;
    demand->page_shift = shift;
    demand->items = items;
    std::set<u64> there, asked, finished;
    for (u64 page = 0; page < pages; page++) {
        if (draw.below(3) > 0) {
            there.insert(page);
            table.data()[sizeof(bifolio_demand) + page] = BIFOLIO_DEMAND_THERE;
        }
    }
    for (u32 slot = 0; slot < items; slot++) {
        ((u32 *)(table.data() + items_at))[slot] = slot * 5 + 1;
        if (draw.below(2)) {
            finished.insert(slot);
        }
    }
    bool with_bad = draw.below(3) == 0;
    std::vector<Question> questions(60);
    for (Question &question : questions) {
        question.offset = draw.below(length + 1);
        question.length = draw.below((length - question.offset < 6000 ? length - question.offset : 6000) + 1);
        if (with_bad && draw.below(6) == 0) {
            question.offset = draw.below(2) ? length + 1 + draw.below(9) : ~0ull - draw.below(3);
            question.length = draw.below(9);
        }
    }
    std::vector<std::thread> threads;
    for (u32 number = 0; number < 3; number++) {
        threads.emplace_back([&, number] {
            for (u64 i = number; i < questions.size(); i += 3) {
                Question &question = questions[i];
                const u8 *got = bifolio_demand_get(demand, file.data(), question.offset, question.length);
                question.got = got != nullptr;
                if (got && got != file.data() + question.offset) {
                    fail("demand: a wrong address for byte %llu", question.offset);
                }
            }
            for (u32 slot = number; slot < items; slot += 3) {
                if (bifolio_demand_item(demand, slot) != slot * 5 + 1) {
                    fail("demand: slot %u has another item", slot);
                }
                if (finished.count(slot)) {
                    bifolio_demand_finish(demand, slot);
                }
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    bool any_bad = false, kept = false;
    for (const Question &question : questions) {
        if (question.offset > length || question.length > length - question.offset) {
            any_bad = true;
            kept |= demand->bad_offset == question.offset && demand->bad_length == question.length;
            if (question.got) {
                fail("demand: %llu bytes at %llu of %llu were given", question.length, question.offset, length);
            }
            continue;
        }
        bool all = true;
        for (u64 at = question.offset; at < question.offset + question.length; at++) {
            u64 page = (skew + at) >> shift;
            asked.insert(page);
            all &= there.count(page) != 0;
        }
        if (all != question.got) {
            fail("demand: %llu bytes at %llu: %d instead of %d", question.length, question.offset, question.got, all);
        }
    }
    if ((demand->bad != 0) != any_bad || (any_bad && !kept)) {
        fail("demand: the question beyond the end is %u: %llu bytes at %llu", demand->bad, demand->bad_length,
             demand->bad_offset);
    }
    for (u64 page = 0; page < pages; page++) {
        u8 expected = (u8)((there.count(page) ? BIFOLIO_DEMAND_THERE : 0) | (asked.count(page) ? BIFOLIO_DEMAND_ASKED : 0));
        if (table.data()[demand->pages_at + page] != expected) {
            fail("demand: page %llu is %u instead of %u", page, table.data()[demand->pages_at + page], expected);
        }
    }
    for (u32 slot = 0; slot < bifolio_demand_items(demand); slot++) {
        if (table.data()[done_at + slot] != finished.count(slot)) {
            fail("demand: slot %u is %u", slot, table.data()[done_at + slot]);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (int round = 0; round < 300; round++) {
        check(draw);
    }
    return 0;
}
