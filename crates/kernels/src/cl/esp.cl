/* ESP for the packets of a batch, four threads for each. `keys` is the schedule for encryption and behind it the powers of H,
 * as for AES-GCM. */
#include "esp.h"

KERNEL void esp(GLOBAL const u8 *input, GLOBAL const u32 *keys, GLOBAL u8 *output, const EspParams params)
{
    LOCAL_VAR u32 schedule[AES_SCHEDULE_WORDS];
    LOCAL_VAR u32 sums[ESP_GROUP_SIZE * 4];
    LOCAL_VAR u32 masks[ESP_TEAMS * 4];
    LOCAL_VAR u32 results[ESP_TEAMS];
    u32 thread = thread_in_group();
    u32 lane = thread % ESP_TEAM_SIZE;
    u32 team = thread / ESP_TEAM_SIZE;
    u32 decrypts = (params.mode & ESP_DECRYPTS) != 0;
    u64 packet = (u64)group_index() * ESP_TEAMS + team;
    u32 hash[4] = {0, 0, 0, 0};
    EspText text;
    u32 here = packet < params.rows.count ? esp_text(&params, input, output, packet, &text) : 0;

    aes_fetch_schedule(schedule, keys, params.rounds, thread, ESP_GROUP_SIZE);
    group_barrier(); /* The schedule is complete before anybody uses it. */
    if (here) {
        esp_text_lane(&text, input, output, params.salt, schedule, params.rounds, masks + team * 4, lane);
    }
    group_fence(); /* The ciphertext is written before others read it. */
    if (here) {
        GLOBAL const u32 *cipher =
            decrypts ? (GLOBAL const u32 *)(input + text.from) : (GLOBAL const u32 *)(output + text.to);
        esp_hash_lane(hash, &text, cipher, keys + AES_SCHEDULE_WORDS, lane);
    }
    aes_gcm_keep(sums, thread, hash);
    group_barrier(); /* All parts are there. */
    if (lane == 0) {
        aes_gcm_kept(hash, sums, thread, ESP_TEAM_SIZE, 1);
        results[team] = here ? esp_tag(&text, input, output, hash, masks + team * 4, decrypts) : ESP_LEFT;
        if (packet < params.rows.count) {
            ((GLOBAL u32 *)(output + params.results_at))[packet] = results[team];
        }
    }
    group_barrier(); /* The team knows. */
    if (here && results[team] == ESP_FORGED) {
        esp_clear_lane(&text, output, lane);
    }
}
