/* ESP with AES-GCM (RFC 4303, RFC 4106) for the packets of a batch, per-thread part.
 *
 * A team of four threads takes a packet. Blocks of key stream are numbered from that which masks the tag: thread l computes
 * l, l + 4, ..., eight at once, so that the longest packet of Ethernet takes three steps and a short one a single one.
 * Authenticated blocks are those of the additional data, of the ciphertext and of the lengths: thread l takes l, l + 4, ...
 * by Horner's rule with H^4.
 *
 * Texts begin and end at 4-byte boundaries, as IP headers do: they are read and written in words. They are written behind the
 * output rows, each as far from the first as its packet's bytes are in the variable part, and `growth` bytes more for each packet
 * before it. Rows that name the same place of the variable part overlap there, too: nothing outside is touched.
 *
 *   encryption    ciphertext and tag; sequence numbers are the packets' places, counted from `number`
 *   decryption    what was encrypted, with its trailer; zeroes, where the tag is wrong
 */
#ifndef BIFOLIO_ESP_H
#define BIFOLIO_ESP_H

#include "aes_gcm.h"
#include "packet_rows.h"

#define ESP_GROUP_SIZE 256u
#define ESP_TEAM_SIZE 4u
#define ESP_TEAMS (ESP_GROUP_SIZE / ESP_TEAM_SIZE)

/* Bits of `mode`. */
#define ESP_DECRYPTS 1u
#define ESP_TUNNEL 2u   /* whole packets are encrypted, and not what follows their IP header */
#define ESP_EXTENDED 4u /* sequence numbers have 64 bits */

/* Results. */
#define ESP_LEFT 0u   /* not a packet for this */
#define ESP_DONE 1u
#define ESP_FORGED 2u /* the tag is wrong */

#define ESP_PROTOCOL 50u
/* Words of the header: SPI, sequence number, IV. */
#define ESP_HEADER_WORDS 4u
#define ESP_TAG_WORDS 4u

typedef struct {
    PacketRows rows;
    u64 results_at; /* a word for each packet, in bytes from the output buffer's begin; a multiple of 16 */
    u64 text_at;    /* the texts, likewise: as many bytes as the variable part has, and `growth` for each packet */
    u64 number;     /* encryption: the first packet's sequence number; decryption: the lowest that one can have */
    u64 iv;         /* encryption: bits in which IVs differ from sequence numbers */
    u32 salt;       /* the first bytes of nonces, as in memory */
    u32 spi;        /* as on the wire */
    u32 rounds;     /* 10, 12 or 14 */
    u32 mode;
    u32 growth;     /* a multiple of 4 */
    u32 reserved;
} EspParams;

STATIC_ASSERT(sizeof(EspParams) == 136, esp_params_match_rust);

/* What is encrypted or decrypted of a packet. Words are as in memory. */
typedef struct {
    u64 from;      /* place of its first word behind the IP header's 20 bytes in the input */
    u64 to;        /* place of the text in the output */
    u32 header[5]; /* what comes before these: the IP header */
    u32 headers;   /* its words, or 0 */
    u32 bytes;     /* of the text without a trailer */
    u32 words;     /* of the text */
    u32 next;      /* protocol, for the trailer */
    u32 aad[3];
    u32 aad_len;
    u32 iv[2];
} EspText;

FN u32 esp_swap16(u32 high_half) { return (high_half >> 16 & 0xff) << 8 | high_half >> 24; }

/* Of a packet with this header: additional data, IV and key stream are those of this sequence number. */
FN void esp_number(PRIVATE EspText *text, u32 spi, u64 number, u32 mode)
{
    u32 extended = (mode & ESP_EXTENDED) != 0;
    text->aad[0] = spi;
    text->aad[1] = aes_swap32(extended ? (u32)(number >> 32) : (u32)number);
    text->aad[2] = extended ? aes_swap32((u32)number) : 0;
    text->aad_len = extended ? 12 : 8;
}

/* What there is to do for a packet; 0: nothing. */
FN u32 esp_text(PRIVATE const EspParams *params, GLOBAL const u8 *input, GLOBAL const u8 *output, u64 packet,
                PRIVATE EspText *text)
{
    PRIVATE const PacketRows *rows = &params->rows;
    GLOBAL const u32 *in = packet_input(rows, input, packet);
    GLOBAL const u32 *out = (GLOBAL const u32 *)(output + (rows->output_at + packet * rows->output_words * 4));
    GLOBAL const u32 *network = in + rows->network;
    u32 decrypts = (params->mode & ESP_DECRYPTS) != 0;
    u32 header_len = (network[0] & 15) * 4;
    u32 total_len = esp_swap16(network[0]);
    u32 is_fragment = (esp_swap16(network[1]) & 0x3fff) != 0;
    u32 skipped = header_len - 20;
    u32 i;
    u64 span;
    if (!packet_takes_part(rows, out) || !packet_has_header(in[0]) || (network[0] >> 4 & 15) != 4 || header_len < 20 ||
        total_len < header_len || total_len > packet_captured(in[0])) {
        return 0;
    }
    span = packet_span(rows, in, (total_len - 20 + 3) / 4 * 4);
    if (span == ~(u64)0) {
        return 0;
    }
    text->from = rows->span_at + span;
    text->to = params->text_at + span + packet * params->growth;
    text->headers = 0;
    text->bytes = total_len - header_len;
    text->next = network[2] >> 8 & 0xff;
    if (decrypts) {
        GLOBAL const u32 *esp = (GLOBAL const u32 *)(input + (text->from + skipped));
        /* At least four bytes of text. */
        if (text->next != ESP_PROTOCOL || is_fragment || text->bytes % 4 != 0 || text->bytes < 36 || esp[0] != params->spi) {
            return 0;
        }
        text->from += skipped + ESP_HEADER_WORDS * 4;
        text->bytes -= (ESP_HEADER_WORDS + ESP_TAG_WORDS) * 4;
        text->words = text->bytes / 4;
        text->iv[0] = esp[2];
        text->iv[1] = esp[3];
        esp_number(text, params->spi, params->number + (u32)(aes_swap32(esp[1]) - (u32)params->number), params->mode);
        return 1;
    }
    if ((params->mode & ESP_TUNNEL) != 0) {
        UNROLL
        for (i = 0; i < 5; i++) {
            text->header[i] = network[i];
        }
        if (rows->ttl != PACKET_NONE) {
            text->header[2] = out[rows->ttl];
        }
        text->headers = 5;
        text->bytes = total_len;
        text->next = 4;
    } else if (is_fragment) {
        return 0;
    } else {
        text->from += skipped;
    }
    /* The trailer is two bytes, and what brings them to a boundary. */
    text->words = (text->bytes + 5) / 4;
    text->iv[0] = aes_swap32((u32)(((params->number + packet) ^ params->iv) >> 32));
    text->iv[1] = aes_swap32((u32)((params->number + packet) ^ params->iv));
    esp_number(text, params->spi, params->number + packet, params->mode);
    return 1;
}

/* A word of what is encrypted or decrypted. */
FN u32 esp_word(PRIVATE const EspText *text, GLOBAL const u8 *input, u32 index)
{
    GLOBAL const u32 *words = (GLOBAL const u32 *)(input + text->from);
    u32 word = 0;
    u32 at = index * 4;
    u32 i;
    if (index < text->headers) {
        UNROLL
        for (i = 0; i < 5; i++) {
            word = i == index ? text->header[i] : word;
        }
    } else if (at < text->bytes) {
        word = words[index - text->headers];
    }
    if (at + 4 > text->bytes) {
        u32 padding = text->words * 4 - 2 - text->bytes;
        for (i = 0; i < 4; i++) {
            u32 behind = at + i - text->bytes;
            u32 byte = behind < padding ? behind + 1 : behind == padding ? padding : text->next;
            if (at + i >= text->bytes) {
                word = (word & ~(0xffu << (i * 8))) | byte << (i * 8);
            }
        }
    }
    return word;
}

/* Threads of a team encrypt or decrypt a text; who has the first block leaves what masks the tag. */
FN void esp_text_lane(PRIVATE const EspText *text, GLOBAL const u8 *input, GLOBAL u8 *output, u32 salt,
                      LOCAL const u32 *schedule, u32 rounds, LOCAL u32 *mask, u32 lane)
{
    GLOBAL u32 *to = (GLOBAL u32 *)(output + text->to);
    u32 blocks = (text->words + 3) / 4 + 1;
    u32 first;
    for (first = lane; first < blocks; first += ESP_TEAM_SIZE * AES_BLOCKS) {
        u32 s[32];
        u32 stream[32];
        u32 k;
        u32 i;
        UNROLL
        for (k = 0; k < AES_BLOCKS; k++) {
            u32 counter = aes_swap32(first + k * ESP_TEAM_SIZE + 1);
            aes_put(s, k, salt | (u64)text->iv[0] << 32, text->iv[1] | (u64)counter << 32);
        }
        aes_slice(s);
        aes_encrypt(s, schedule, rounds);
        aes_unslice(s);
        /* Numbers of blocks are not known when this is compiled, and what is indexed by them is not in registers. */
        UNROLL
        for (k = 0; k < AES_BLOCKS; k++) {
            UNROLL
            for (i = 0; i < 4; i++) {
                stream[k * 4 + i] = s[i * 8 + k];
            }
        }
        NO_UNROLL
        for (k = 0; k < AES_BLOCKS; k++) {
            u32 block = first + k * ESP_TEAM_SIZE;
            for (i = 0; i < 4; i++) {
                u32 index = block * 4 + i - 4;
                if (block == 0) {
                    mask[i] = stream[i];
                } else if (index < text->words) {
                    to[index] = esp_word(text, input, index) ^ stream[k * 4 + i];
                }
            }
        }
    }
}

/* Adds authenticated block `i` of `total`; `cipher` are the ciphertext's words. */
FN void esp_add_block(PRIVATE u32 *sum, PRIVATE const EspText *text, GLOBAL const u32 *cipher, u32 total, u32 i)
{
    u32 j;
    if (i + 1 == total) {
        sum[2] ^= text->aad_len * 8;
        sum[0] ^= text->words * 32;
        return;
    }
    UNROLL
    for (j = 0; j < 4; j++) {
        u32 index = i * 4 + j - 4;
        u32 word = 0;
        if (i == 0) {
            word = j < 3 ? text->aad[j] : 0;
        } else if (index < text->words) {
            word = cipher[index];
        }
        sum[3 - j] ^= aes_swap32(word);
    }
}

/* The part of a packet's hash that thread `lane` of its team contributes. */
FN void esp_hash_lane(PRIVATE u32 *sum, PRIVATE const EspText *text, GLOBAL const u32 *cipher, GLOBAL const u32 *powers,
                      u32 lane)
{
    u32 total = (text->words + 3) / 4 + 2;
    u32 i = lane;
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    if (i >= total) {
        return;
    }
    esp_add_block(sum, text, cipher, total, i);
    do {
        u32 power[4];
        i += ESP_TEAM_SIZE;
        /* As in aes_gcm_hash_lane. */
        aes_gcm_power(power, powers, i < total ? ESP_TEAM_SIZE : total + ESP_TEAM_SIZE - i);
        aes_gcm_multiply(sum, power);
        if (i < total) {
            esp_add_block(sum, text, cipher, total, i);
        }
    } while (i < total);
}

/* The tag of a packet whose hash is `hash` is written behind the text, or compared with that in the packet. The result. */
FN u32 esp_tag(PRIVATE const EspText *text, GLOBAL const u8 *input, GLOBAL u8 *output, PRIVATE const u32 *hash,
               LOCAL const u32 *mask, u32 decrypts)
{
    GLOBAL const u32 *given = (GLOBAL const u32 *)(input + text->from) + text->words;
    GLOBAL u32 *tag = (GLOBAL u32 *)(output + text->to) + text->words;
    u32 differs = 0;
    u32 i;
    UNROLL
    for (i = 0; i < 4; i++) {
        u32 word = aes_swap32(hash[3 - i]) ^ mask[i];
        if (decrypts) {
            differs |= word ^ given[i];
        } else {
            tag[i] = word;
        }
    }
    return differs == 0 ? ESP_DONE : ESP_FORGED;
}

/* What a thread of the team has decrypted is zero. */
FN void esp_clear_lane(PRIVATE const EspText *text, GLOBAL u8 *output, u32 lane)
{
    GLOBAL u32 *to = (GLOBAL u32 *)(output + text->to);
    u32 block;
    u32 i;
    for (block = lane == 0 ? ESP_TEAM_SIZE : lane; block * 4 - 4 < text->words; block += ESP_TEAM_SIZE) {
        for (i = 0; i < 4; i++) {
            if (block * 4 + i - 4 < text->words) {
                to[block * 4 + i - 4] = 0;
            }
        }
    }
}

#endif
