// The per-thread functions of aes_xts.h, aes_ctr.h, aes_gcm.h and esp.h, run over all threads on exact-size
// heap buffers, against AES and GF(2^128) bit by bit from their definitions. Built with
// AddressSanitizer and UBSan. Argument: the seed. LOGIC3 is computed from its truth tables here.
#include "aes_ctr.h"
#include "aes_gcm.h"
#include "aes_xts.h"
#include "esp.h"

#include "harness.hpp"

#include <algorithm>
#include <vector>

static u8 times(u8 a, u8 b)
{
    u8 product = 0;
    for (; b != 0; b >>= 1) {
        product ^= (b & 1) ? a : 0;
        a = (u8)(a << 1 ^ ((a & 0x80) ? 0x1b : 0));
    }
    return product;
}

// FIPS 197, 5.1.1: the inverse, then the affine map.
static u8 substitute(u8 a)
{
    u8 inverse = 1;
    for (int i = 0; i < 254; i++) {
        inverse = times(inverse, a);
    }
    u8 result = 0x63;
    for (int i = 0; i < 5; i++) {
        result ^= (u8)(inverse << i | inverse >> (8 - i));
    }
    return result;
}

struct Tables {
    u8 forward[256], inverse[256];
    Tables()
    {
        for (int a = 0; a < 256; a++) {
            forward[a] = substitute((u8)a);
            inverse[forward[a]] = (u8)a;
        }
    }
};
static const Tables boxes;

// A cipher with round keys; those of these tests are random, since how they come about is not the kernels'
// business.
struct Cipher {
    u32 rounds;
    u8 keys[15][16];

    Cipher(u32 rounds, Draw &draw) : rounds(rounds) { draw.fill(keys[0], sizeof keys); }
    static void mix(u8 *state, const u8 *row)
    {
        for (int c = 0; c < 4; c++) {
            u8 column[4];
            memcpy(column, state + 4 * c, 4);
            for (int r = 0; r < 4; r++) {
                state[4 * c + r] = 0;
                for (int i = 0; i < 4; i++) {
                    state[4 * c + r] ^= times(column[(r + i) % 4], row[i]);
                }
            }
        }
    }
    static void mix_columns(u8 *state) { mix(state, (const u8 *)"\x02\x03\x01\x01"); }
    static void inv_mix_columns(u8 *state) { mix(state, (const u8 *)"\x0e\x0b\x0d\x09"); }
    static void shift_rows(u8 *state, int by)
    {
        u8 before[16];
        memcpy(before, state, 16);
        for (int i = 0; i < 16; i++) {
            state[i] = before[(i + 4 * by * (i % 4)) % 16];
        }
    }
    void encrypt(u8 *block) const
    {
        for (u32 round = 0; round <= rounds; round++) {
            if (round > 0) {
                for (int i = 0; i < 16; i++) {
                    block[i] = boxes.forward[block[i]];
                }
                shift_rows(block, 1);
                if (round < rounds) {
                    mix_columns(block);
                }
            }
            for (int i = 0; i < 16; i++) {
                block[i] ^= keys[round][i];
            }
        }
    }
    void decrypt(u8 *block) const
    {
        for (u32 round = rounds + 1; round-- > 0;) {
            for (int i = 0; i < 16; i++) {
                block[i] ^= keys[round][i];
            }
            if (round > 0) {
                if (round < rounds) {
                    inv_mix_columns(block);
                }
                shift_rows(block, 3);
                for (int i = 0; i < 16; i++) {
                    block[i] = boxes.inverse[block[i]];
                }
            }
        }
    }
    std::vector<u32> schedule(bool inverse) const
    {
        std::vector<u32> words;
        for (u32 round = 0; round <= rounds; round++) {
            u8 key[16];
            memcpy(key, keys[round], 16);
            if (!inverse && round > 0) {
                if (round < rounds) {
                    inv_mix_columns(key);
                }
                shift_rows(key, 3);
            }
            if (inverse && round < rounds) {
                shift_rows(key, 1);
            }
            for (int word = 0; word < 32; word++) {
                u32 sliced = 0;
                for (int c = 0; c < 4; c++) {
                    sliced |= (key[4 * c + word / 8] >> word % 8 & 1) ? 0xffu << 8 * c : 0;
                }
                words.push_back(sliced);
            }
        }
        return words;
    }
};

static void expect(const char *what, const u8 *found, const u8 *expected, u64 len)
{
    for (u64 i = 0; i < len; i++) {
        if (found[i] != expected[i]) {
            fail("%s: byte %llu of %llu is %#x instead of %#x", what, i, len, found[i], expected[i]);
        }
    }
}

// With a key of zeros, so that the circuits are seen alone.
static void check_boxes()
{
    const u32 zero[8] = {0};
    for (u32 first = 0; first < 256; first += 32) {
        u32 s[8] = {0};
        for (u32 i = 0; i < 256; i++) {
            s[i % 8] |= ((first + i / 8) >> i % 8 & 1) << i / 8;
        }
        for (bool inverse : {false, true}) {
            u32 t[8];
            memcpy(t, s, sizeof t);
            inverse ? aes_inv_sub_bytes(t, zero) : aes_sub_bytes(t, zero);
            for (u32 i = 0; i < 32; i++) {
                u8 found = 0;
                for (u32 b = 0; b < 8; b++) {
                    found |= (u8)((t[b] >> i & 1) << b);
                }
                u8 expected = (inverse ? boxes.inverse : boxes.forward)[first + i];
                expect("S-box", &found, &expected, 1);
            }
        }
    }
}

static void check_xts(u32 rounds, u64 sectors, u32 units, u32 iv_step, Draw &draw)
{
    Cipher data(rounds, draw), tweak(rounds, draw);
    u64 len = sectors * units * 512, first_iv = draw.next() >> draw.below(64);
    ExactBuffer src(len), dst(len), tweaks(sectors * 16);
    draw.fill(src.data(), len);
    std::vector<u32> tweak_schedule = tweak.schedule(false);
    for (u64 thread = 0; thread <= sectors / 8; thread++) {
        aes_xts_tweaks_thread(tweaks.data(), tweak_schedule.data(), sectors, first_iv, iv_step, rounds, thread);
    }
    for (u32 inverse : {0u, 1u}) {
        std::vector<u8> expected(src.data(), src.data() + len);
        for (u64 sector = 0; sector < sectors; sector++) {
            u8 t[16] = {0};
            u64 iv = first_iv + sector * iv_step;
            memcpy(t, &iv, 8);
            tweak.encrypt(t);
            for (u64 at = sector * units * 512; at < (sector + 1) * units * 512; at += 16) {
                u8 *block = expected.data() + at;
                for (int i = 0; i < 16; i++) {
                    block[i] ^= t[i];
                }
                inverse ? data.decrypt(block) : data.encrypt(block);
                for (int i = 0; i < 16; i++) {
                    block[i] ^= t[i];
                }
                u8 over = t[15] >> 7;
                for (int i = 15; i >= 0; i--) {
                    t[i] = (u8)(t[i] << 1 | (i > 0 ? t[i - 1] >> 7 : 0));
                }
                t[0] ^= over ? 0x87 : 0;
            }
        }
        std::vector<u32> schedule = data.schedule(inverse);
        draw.fill(dst.data(), len);
        for (u64 thread = 0; thread < sectors * units * 4 + 4; thread++) {
            aes_xts_thread(src.data(), dst.data(), tweaks.data(), schedule.data(), sectors, units, rounds, thread,
                           inverse);
        }
        expect("XTS", dst.data(), expected.data(), len);
    }
}

static void count_up(u8 *counter, int bytes)
{
    for (int i = 15; i >= 16 - bytes && ++counter[i] == 0; i--) {
    }
}

static std::vector<u8> counted(const Cipher &cipher, const u8 *start, const u8 *src, u64 len, int counter_bytes)
{
    std::vector<u8> result(src, src + len);
    u8 counter[16];
    memcpy(counter, start, 16);
    for (u64 at = 0; at < len; at += 16) {
        u8 stream[16];
        memcpy(stream, counter, 16);
        cipher.encrypt(stream);
        for (u64 i = at; i < std::min(at + 16, len); i++) {
            result[i] ^= stream[i - at];
        }
        count_up(counter, counter_bytes);
    }
    return result;
}

static u64 big_endian(const u8 *bytes)
{
    u64 word = 0;
    for (int i = 0; i < 8; i++) {
        word = word << 8 | bytes[i];
    }
    return word;
}

static void check_ctr(u32 rounds, u64 len, Draw &draw)
{
    Cipher cipher(rounds, draw);
    ExactBuffer src(len), dst(len);
    u8 counter[16];
    draw.fill(src.data(), len);
    draw.fill(counter, 16);
    memset(counter + draw.below(16), 0xff, 1);
    memset(counter + 8, draw.below(2) ? 0xff : counter[8], 7);
    std::vector<u8> expected = counted(cipher, counter, src.data(), len, 16);
    std::vector<u32> schedule = cipher.schedule(false);
    for (u32 lane = 0; lane < 32; lane++) {
        aes_ctr_team(src.data(), dst.data(), len, big_endian(counter), big_endian(counter + 8), schedule.data(), rounds,
                     lane, 0);
    }
    expect("CTR", dst.data(), expected.data(), len);
}

// SP 800-38D, 6.3: bit by bit, the first bit of a byte is its most significant one.
static void gcm_times(u8 *x, const u8 *h)
{
    u8 z[16] = {0}, v[16];
    memcpy(v, h, 16);
    for (int bit = 0; bit < 128; bit++) {
        for (int i = 0; i < 16 && (x[bit / 8] >> (7 - bit % 8) & 1); i++) {
            z[i] ^= v[i];
        }
        u8 over = v[15] & 1;
        for (int i = 15; i >= 0; i--) {
            v[i] = (u8)(v[i] >> 1 | (i > 0 ? v[i - 1] << 7 : 0));
        }
        v[0] ^= over ? 0xe1 : 0;
    }
    memcpy(x, z, 16);
}

static void gcm_hash(u8 *sum, const u8 *h, const u8 *bytes, u64 len)
{
    for (u64 at = 0; at < len; at += 16) {
        for (u64 i = at; i < std::min(at + 16, len); i++) {
            sum[i - at] ^= bytes[i];
        }
        gcm_times(sum, h);
    }
}

static void put_bits(u8 *lengths, u64 first, u64 second)
{
    for (int i = 0; i < 8; i++) {
        lengths[i] = (u8)(first * 8 >> (56 - 8 * i));
        lengths[8 + i] = (u8)(second * 8 >> (56 - 8 * i));
    }
}

static void check_gcm(u32 rounds, u64 len, u32 nonce_len, u32 aad_len, Draw &draw)
{
    Cipher cipher(rounds, draw);
    std::vector<u32> schedule = cipher.schedule(false), powers;
    u8 h[16] = {0}, power[16], j0[16] = {0}, sum[16] = {0}, lengths[16];
    cipher.encrypt(h);
    memcpy(power, h, 16);
    for (int i = 0; i < 32; i++) {
        for (int word = 3; word >= 0; word--) {
            powers.push_back((u32)(big_endian(power + (word / 2) * 8) >> (word % 2 ? 0 : 32)));
        }
        gcm_times(power, h);
    }
    ExactBuffer plain(len), text(len), meta(nonce_len + 16), starts(32);
    draw.fill(plain.data(), len);
    draw.fill(meta.data(), meta.size());
    AesGcmMessage message = {};
    message.tag = nonce_len;
    message.len = len;
    message.nonce_len = nonce_len;
    message.aad_len = aad_len;
    draw.fill((u8 *)message.aad, aad_len);

    memcpy(j0, meta.data(), nonce_len);
    j0[15] = nonce_len == 12 ? 1 : j0[15];
    if (nonce_len == 16) {
        gcm_times(j0, h);
        put_bits(lengths, 0, 16);
        gcm_hash(j0, h, lengths, 16);
    }
    u8 start[32];
    memcpy(start, j0, 16);
    memcpy(start + 16, j0, 16);
    cipher.encrypt(start + 16);
    aes_gcm_starts_thread(starts.data(), meta.data(), &message, powers.data(), schedule.data(), 1, rounds, 0);
    expect("GCM: J0 and its encryption", starts.data(), start, 32);

    count_up(j0, 4);
    std::vector<u8> expected = counted(cipher, j0, plain.data(), len, 4);
    for (u32 lane = 0; lane < 32; lane++) {
        aes_gcm_text_lane(plain.data(), text.data(), len, starts.data(), schedule.data(), rounds, lane);
    }
    expect("GCM", text.data(), expected.data(), len);

    gcm_hash(sum, h, (const u8 *)message.aad, aad_len);
    gcm_hash(sum, h, expected.data(), len);
    put_bits(lengths, aad_len, len);
    gcm_hash(sum, h, lengths, 16);
    u32 sums[32 * 4], hash[4];
    for (u32 lane = 0; lane < 32; lane++) {
        aes_gcm_hash_lane(hash, &message, text.data(), powers.data(), lane);
        aes_gcm_keep(sums, lane, hash);
    }
    aes_gcm_kept(hash, sums, 0, 32, 1);
    for (int i = 0; i < 16; i++) {
        sum[i] ^= start[16 + i];
    }
    u8 *tag = meta.data() + nonce_len;
    aes_gcm_seal(tag, hash, starts.data());
    expect("GCM: tag", tag, sum, 16);
    u32 right = aes_gcm_right(tag, hash, starts.data());
    tag[draw.below(16)] ^= (u8)(1u << draw.below(8));
    if (right != 1 || aes_gcm_right(tag, hash, starts.data()) != 0) {
        fail("GCM: a right tag is called wrong, or the other way round");
    }
}

static void check_blocks(u64 count, u64 last, Draw &draw)
{
    ExactBuffer table(count * sizeof(AesGcmMessage));
    AesGcmBlocks blocks = {};
    blocks.sealed = draw.below(1000) * 16;
    blocks.plain = draw.below(1000) * 16;
    blocks.first = ((u64)draw.below(1u << 31) << 32) | draw.below(1u << 31);
    blocks.block = 4096;
    blocks.len = (count - 1) * 4096 + last;
    blocks.count = count;
    draw.fill((u8 *)blocks.id, 16);
    for (u64 m = 0; m < count; m++) {
        aes_gcm_message_thread((AesGcmMessage *)table.data(), &blocks, m);
        AesGcmMessage wanted = {}, *found = (AesGcmMessage *)table.data() + m;
        wanted.nonce = blocks.sealed + m * 4128;
        wanted.src = wanted.nonce + 16;
        wanted.dst = blocks.plain + m * 4096;
        wanted.len = m + 1 == count ? last : 4096;
        wanted.tag = wanted.src + wanted.len;
        wanted.nonce_len = 16;
        wanted.aad_len = 24;
        for (int i = 0; i < 8; i++) {
            ((u8 *)wanted.aad)[i] = (u8)((blocks.first + m) >> (56 - 8 * i));
        }
        memcpy(wanted.aad + 2, blocks.id, 16);
        expect("GCM: a block's message", (const u8 *)found, (const u8 *)&wanted, sizeof wanted);
    }
}

// A packet in a row, with a key and powers of H of a plain cipher: encrypted as RFC 4303 and RFC 4106 say, and back.
static void check_esp(u32 rounds, u32 payload_len, u32 option_words, bool tunnel, bool extended, Draw &draw)
{
    Cipher cipher(rounds, draw);
    std::vector<u32> schedule = cipher.schedule(false), powers;
    u8 h[16] = {0}, power[16];
    cipher.encrypt(h);
    memcpy(power, h, 16);
    for (int i = 0; i < 32; i++) {
        for (int word = 3; word >= 0; word--) {
            powers.push_back((u32)(big_endian(power + (word / 2) * 8) >> (word % 2 ? 0 : 32)));
        }
        gcm_times(power, h);
    }
    u32 header_len = 20 + option_words * 4, total_len = header_len + payload_len;
    std::vector<u8> packet(total_len);
    draw.fill(packet.data(), total_len);
    packet[0] = (u8)(0x45 + option_words);
    packet[2] = (u8)(total_len >> 8);
    packet[3] = (u8)total_len;
    packet[6] = packet[7] = 0;

    EspParams params = {};
    params.rows.count = 2;
    params.rows.input_words = 7;
    params.rows.output_words = 1;
    params.rows.spans = PACKET_SPANS_ALL;
    params.rows.annotations = params.rows.link = params.rows.transport = params.rows.ttl = params.rows.test = PACKET_NONE;
    params.rows.network = 2;
    params.rows.span_at = 64;
    params.rows.span_bytes = (total_len - 20 + 3) / 4 * 4;
    params.results_at = 16;
    params.text_at = 32;
    params.number = draw.next();
    params.iv = draw.next();
    params.salt = (u32)draw.next();
    params.spi = (u32)draw.next();
    params.rounds = rounds;
    params.growth = 40;
    params.mode = (tunnel ? ESP_TUNNEL : 0) | (extended ? ESP_EXTENDED : 0);
    ExactBuffer input(64 + params.rows.span_bytes);
    draw.fill(input.data(), input.size());
    u32 row[2] = {total_len | PACKET_HAS_NETWORK, 0};
    memcpy(input.data() + 28, row, 8);
    memcpy(input.data() + 36, packet.data(), 20);
    memcpy(input.data() + 64, packet.data() + 20, total_len - 20);

    // The text, bit by bit. It is the second packet: the first row is noise that says nothing of a packet.
    memset(input.data(), 0, 4);
    std::vector<u8> text(packet.begin() + (tunnel ? 0 : header_len), packet.end());
    u8 next = tunnel ? 4 : packet[9], padding = 0;
    while ((text.size() + 2) % 4 != 0) {
        text.push_back(++padding);
    }
    text.push_back(padding);
    text.push_back(next);
    u64 number = params.number + 1, iv = number ^ params.iv;
    u8 counter[16], aad[12], lengths[16], mask[16], sum[16] = {0};
    memcpy(counter, &params.salt, 4);
    memcpy(aad, &params.spi, 4);
    for (int i = 0; i < 8; i++) {
        counter[4 + i] = (u8)(iv >> (56 - 8 * i));
        aad[4 + i] = (u8)(number >> (56 - 8 * i));
    }
    if (!extended) {
        memcpy(aad + 4, aad + 8, 4);
    }
    memset(counter + 12, 0, 3);
    counter[15] = 1;
    memcpy(mask, counter, 16);
    cipher.encrypt(mask);
    count_up(counter, 4);
    std::vector<u8> expected = counted(cipher, counter, text.data(), text.size(), 4);
    gcm_hash(sum, h, aad, extended ? 12 : 8);
    gcm_hash(sum, h, expected.data(), expected.size());
    put_bits(lengths, extended ? 12 : 8, expected.size());
    gcm_hash(sum, h, lengths, 16);
    for (int i = 0; i < 16; i++) {
        expected.push_back(sum[i] ^ mask[i]);
    }

    ExactBuffer output(32 + 40 + expected.size());
    memset(output.data(), 0xa5, output.size());
    EspText found;
    u32 masks[4], sums[4 * 4], hash[4];
    if (esp_text(&params, input.data(), output.data(), 0, &found) || !esp_text(&params, input.data(), output.data(), 1, &found)) {
        fail("ESP: a packet of %u bytes is left out, or what is none is not", total_len);
    }
    auto run = [&](ExactBuffer &from, ExactBuffer &to, u32 decrypts) {
        for (u32 lane = 0; lane < ESP_TEAM_SIZE; lane++) {
            esp_text_lane(&found, from.data(), to.data(), params.salt, schedule.data(), rounds, masks, lane);
        }
        u8 *cipher_text = decrypts ? from.data() + found.from : to.data() + found.to;
        for (u32 lane = 0; lane < ESP_TEAM_SIZE; lane++) {
            esp_hash_lane(hash, &found, (const u32 *)cipher_text, powers.data(), lane);
            aes_gcm_keep(sums, lane, hash);
        }
        aes_gcm_kept(hash, sums, 0, ESP_TEAM_SIZE, 1);
        return esp_tag(&found, from.data(), to.data(), hash, masks, decrypts);
    };
    run(input, output, 0);
    expect("ESP: ciphertext and tag", output.data() + 32 + 40, expected.data(), expected.size());

    // And back: a packet without options around it.
    u32 sealed_len = 20 + 16 + (u32)expected.size();
    params.mode |= ESP_DECRYPTS;
    params.growth = 0;
    params.number = extended ? number - draw.below(1000) : 0;
    params.rows.count = 1;
    params.rows.input_at = 0;
    params.rows.span_at = 32;
    params.rows.span_bytes = sealed_len - 20;
    ExactBuffer sealed(32 + sealed_len - 20), plain(32 + text.size());
    memset(sealed.data(), 0, 32);
    row[0] = sealed_len | PACKET_HAS_NETWORK;
    memcpy(sealed.data(), row, 8);
    u8 header[12] = {0x45, 0, (u8)(sealed_len >> 8), (u8)sealed_len, 0, 0, 0x40, 0, 64, 50, 0, 0};
    memcpy(sealed.data() + 8, header, 12);
    memcpy(sealed.data() + 32, &params.spi, 4);
    for (int i = 0; i < 8; i++) {
        sealed.data()[36 + i % 4] = (u8)(number >> (24 - 8 * (i % 4)));
        sealed.data()[40 + i] = (u8)(iv >> (56 - 8 * i));
    }
    memcpy(sealed.data() + 48, expected.data(), expected.size());
    if (!esp_text(&params, sealed.data(), plain.data(), 0, &found) || run(sealed, plain, 1) != ESP_DONE) {
        fail("ESP: a packet of %u bytes is not what was encrypted", total_len);
    }
    expect("ESP: plaintext", plain.data() + 32, text.data(), text.size());
    sealed.data()[36 + draw.below(sealed_len - 24)] ^= (u8)(1u << draw.below(8));
    if (!esp_text(&params, sealed.data(), plain.data(), 0, &found) || run(sealed, plain, 1) != ESP_FORGED) {
        fail("ESP: a forged packet of %u bytes is not noticed", total_len);
    }
    for (u32 lane = 0; lane < ESP_TEAM_SIZE; lane++) {
        esp_clear_lane(&found, plain.data(), lane);
    }
    std::vector<u8> zeroes(text.size());
    expect("ESP: a forged packet's plaintext", plain.data() + 32, zeroes.data(), zeroes.size());
    // Whatever the row says.
    params.mode = (u32)draw.below(8);
    for (int round = 0; round < 50; round++) {
        draw.fill(sealed.data(), 28);
        u32 place = (u32)draw.below(9);
        memcpy(sealed.data() + 4, &place, 4);
        ExactBuffer room(32 + params.rows.span_bytes + 40);
        params.growth = params.mode & ESP_DECRYPTS ? 0 : 40;
        if (esp_text(&params, sealed.data(), room.data(), 0, &found)) {
            run(sealed, room, params.mode & ESP_DECRYPTS);
        }
    }
}

int main(int argc, char **argv)
{
    Draw draw(seed_of(argc, argv));
    check_boxes();
    check_blocks(1, 1, draw);
    check_blocks(3, 4096, draw);
    check_blocks(9, 1 + draw.below(4096), draw);
    for (u32 rounds : {10u, 12u, 14u}) {
        check_xts(rounds, 1, 1, 1, draw);
        check_xts(rounds, 9, 1, 1, draw);
        check_xts(rounds, 3, 2, 2, draw);
        check_xts(rounds, 2, 8, 8, draw);
        for (u64 len : {0, 1, 15, 16, 17, 511, 512, 513, 4095, 4096, 4097, 9000}) {
            check_ctr(rounds, len, draw);
            check_gcm(rounds, len, 12, (u32)draw.below(33), draw);
            check_gcm(rounds, len, 16, (u32)draw.below(33), draw);
        }
        for (u32 len : {0, 1, 2, 3, 4, 11, 44, 60, 75, 76, 77, 480, 493, 1480}) {
            for (u32 kind = 0; kind < 4; kind++) {
                check_esp(rounds, len, draw.below(2) ? 0 : (u32)draw.below(11), kind & 1, kind >> 1, draw);
            }
        }
    }
    return 0;
}
