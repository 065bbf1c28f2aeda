// The per-thread functions of crc32c.h and sha256.h on exact-size heap buffers, against the standards'
// examples, and for CRC32C against a register that takes bit after bit. Built with AddressSanitizer
// and UBSan. Argument: the seed.
#include "crc32c.h"
#include "sha256.h"

#include "harness.hpp"

#include <vector>

static void check_crc(u64 len, Draw &draw)
{
    u32 step[32], after[32];
    std::vector<u32> table;
    for (u32 i = 0; i < 32; i++) {
        step[i] = crc32c_bits(1u << i, CRC32C_STEP_BYTES * 8);
        after[i] = crc32c_bits(1u << 31, i * 128);
    }
    for (u32 i = 0; i < CRC32C_TABLE_WORDS; i++) {
        table.push_back(crc32c_entry(step, i));
    }
    ExactBuffer block(len);
    draw.fill(block.data(), len);
    u32 expected = ~0u, sum = 0;
    for (u64 bit = 0; bit < len * 8; bit++) {
        u32 odd = (expected ^ block.data()[bit / 8] >> bit % 8) & 1;
        expected = expected >> 1 ^ (odd ? 0x82f63b78u : 0);
    }
    for (u32 lane = 0; lane < CRC32C_TEAM_SIZE; lane++) {
        sum ^= crc32c_lane(block.data(), len, table.data(), after, lane);
    }
    u32 found = crc32c_finish(block.data(), len, sum);
    if (found != ~expected) {
        fail("CRC32C of %llu bytes is %#x instead of %#x", len, found, ~expected);
    }
}

static void check_sha(const char *text, u64 times, u32 first_word, u32 last_word)
{
    u64 part = strlen(text), len = part * times;
    ExactBuffer block(len), digest(32);
    for (u64 i = 0; i < len; i++) {
        block.data()[i] = (u8)text[i % part];
    }
    sha256_thread(block.data(), len, digest.data());
    u32 words[2] = {0, 0};
    for (int i = 0; i < 4; i++) {
        words[0] = words[0] << 8 | digest.data()[i];
        words[1] = words[1] << 8 | digest.data()[28 + i];
    }
    if (words[0] != first_word || words[1] != last_word) {
        fail("SHA-256 of %llu bytes begins %#x and ends %#x", len, words[0], words[1]);
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    for (u64 len : {0, 1, 15, 16, 17, 31, 32, 511, 512, 513, 528, 1024, 4095, 4096, 4097, 10000}) {
        check_crc(len, draw);
    }
    check_sha("", 0, 0xe3b0c442, 0x7852b855);
    check_sha("abc", 1, 0xba7816bf, 0xf20015ad);
    check_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, 0x248d6a61, 0x19db06c1);
    check_sha("a", 1000000, 0xcdc76e5c, 0xc7112cd0);
    return 0;
}
