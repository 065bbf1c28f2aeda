//! Every service on every device of this machine, along every route and by both paths, against the kernels'
//! oracles; with slots so small that requests are cut.

use crate::support::{Case, Host, content, devices, memory};
use bifolio_compute::service::{
    AesCtr, AesGcm, AesXts, Blocks, Copy, Digests, Generate, Message, Messages, Recover, Scrub, Stripes,
};
use bifolio_compute::{ErrorKind, Executor, Memory, Options, Path, Request};
use bifolio_device::{BackendKind, Device};
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::digest::{self, Digest};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::{self, Geometry, Loss};
use bifolio_kernels::{aes_ctr, aes_gcm};
use std::sync::Arc;

const SLOT_BYTES: u64 = 64 << 10;

fn executor(device: &Device) -> Executor {
    let options = Options { slot_bytes: SLOT_BYTES, cpu_part_bytes: 32 << 10, calibrates: false, ..Options::default() };
    Executor::new(device, Options { pipelines: 2, cpu_threads: 2, ..options }).unwrap()
}

fn check(device: &Device, executor: &Executor, case: &Case) {
    let caller = executor.caller();
    for path in [Path::Cpu, Path::Device] {
        case.check_everywhere(device, &caller, path);
    }
}

/// That what was forced onto the device was computed there, but for what is known not to be able to.
fn device_did_it(executor: &Executor) {
    for of in executor.statistics() {
        assert_eq!((of.device_off.as_deref(), of.taken_over), (None, 0), "{of:?}");
        assert!(of.device_bytes > 0 && of.cpu_bytes > 0, "{of:?}");
    }
}

/// Around a sector, around a slot, and several parts.
#[test]
fn copies_and_streams_of_any_length() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        let copy = executor.register(Arc::new(Copy));
        for len in [0, 1, 15, 4096, SLOT_BYTES - 1, SLOT_BYTES + 1, 3 * SLOT_BYTES + 17] {
            let input = draw.bytes(len as usize);
            let (output, results) = (Some(input.clone()), vec![vec![]]);
            check(
                &device,
                &executor,
                &Case { steps: vec![copy.step(())], input, output, results, in_place: true, gaps: vec![] },
            );
        }
        for key_bytes in [16, 24, 32] {
            let key = draw.bytes(key_bytes);
            let ctr = executor.register(AesCtr::new(executor.kernels(), &key).unwrap());
            for len in [0, 1, 17, 4097, SLOT_BYTES + 5, 3 * SLOT_BYTES + 17] {
                // Counters that overflow their lower half on the way.
                let counter: [u8; 16] = [draw.bytes(8), vec![0xff; 7], vec![0xf0]].concat().try_into().unwrap();
                let input = draw.bytes(len as usize);
                let mut output = input.clone();
                aes_ctr::oracle(&key, counter, &mut output);
                let steps = vec![ctr.step(counter)];
                check(
                    &device,
                    &executor,
                    &Case { steps, input, output: Some(output), results: vec![vec![]], in_place: true, gaps: vec![] },
                );
            }
        }
        device_did_it(&executor);
    }
}

#[test]
fn xts_of_all_sectors_and_keys() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        for (key_bytes, sector_bytes, iv_unit, count) in [
            (32, 512, IvUnit::Bytes512, 1),
            (32, 4096, IvUnit::Bytes512, 40),
            (64, 4096, IvUnit::Sector, 17),
            (64, 512, IvUnit::Sector, 500),
        ] {
            let (key, first_iv) = (draw.bytes(key_bytes), u64::MAX - draw.below(5));
            let plain = draw.bytes(count * sector_bytes as usize);
            let sectors = Sectors { bytes: sector_bytes, first_iv, iv_unit };
            let mut sealed = plain.clone();
            aes_xts::oracle(Direction::Encrypt, &key, sectors, &mut sealed);
            for (direction, input, output) in
                [(Direction::Encrypt, &plain, &sealed), (Direction::Decrypt, &sealed, &plain)]
            {
                let xts = AesXts::new(executor.kernels(), &key, direction, sector_bytes, iv_unit).unwrap();
                let steps = vec![executor.register(xts).step(first_iv)];
                let (input, output) = (input.clone(), Some(output.clone()));
                check(
                    &device,
                    &executor,
                    &Case { steps, input, output, results: vec![vec![]], in_place: true, gaps: vec![] },
                );
            }
        }
        device_did_it(&executor);
    }
}

/// Messages of several lengths, with nonces of both, a gap between them.
fn messages(draw: &mut Draw, key: &[u8], lens: &[u64]) -> (Messages, Vec<u8>, Vec<u8>, Vec<u8>) {
    let (mut messages, mut tags, mut at) = (vec![], vec![], 0_u64);
    let mut plain = vec![];
    for (i, len) in lens.iter().enumerate() {
        let (nonce, aad) = (draw.bytes(if i % 2 == 0 { 12 } else { 16 }), draw.bytes(i % 33));
        plain.resize(at as usize, 0);
        plain.extend(draw.bytes(*len as usize));
        messages.push(Message { at, len: *len, nonce, aad, tag: [0; 16] });
        at = (at + len).next_multiple_of(16) + draw.below(2) * 16;
    }
    let mut sealed = plain.clone();
    for message in &mut messages {
        let text = &mut sealed[message.at as usize..][..message.len as usize];
        message.tag = aes_gcm::oracle_encrypt(key, &message.nonce, &message.aad, text);
        tags.extend(message.tag);
    }
    (messages.into(), plain, sealed, tags)
}

#[test]
fn gcm_of_many_messages() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        for (key_bytes, lens) in [(16, vec![1]), (32, vec![4096; 40]), (16, vec![0, 5, 16, 700, 4096, 20_000, 1, 300])]
        {
            let key = draw.bytes(key_bytes);
            let (messages, plain, sealed, tags) = messages(&mut draw, &key, &lens);
            let encrypt = executor.register(AesGcm::new(executor.kernels(), &key, Direction::Encrypt).unwrap());
            let decrypt = executor.register(AesGcm::new(executor.kernels(), &key, Direction::Decrypt).unwrap());
            let flags = 1_u32.to_ne_bytes().repeat(lens.len());
            for (step, input, output, results) in [
                (encrypt.step(Messages::clone(&messages)), &plain, &sealed, tags),
                (decrypt.step(Messages::clone(&messages)), &sealed, &plain, flags),
            ] {
                let (input, output) = (input.clone(), Some(output.clone()));
                let ends = messages.items().iter().map(|message| (message.at + message.len) as usize);
                let starts = messages.items().iter().skip(1).map(|message| message.at as usize);
                let gaps = ends.zip(starts).map(|(end, start)| end..start).collect();
                let case = Case { steps: vec![step], input, output, results: vec![results], in_place: true, gaps };
                check(&device, &executor, &case);
            }
        }
        device_did_it(&executor);
    }
}

/// One message of a request is changed: the request fails and names it, nothing of it is in the destination, and
/// every other message is there.
#[test]
fn a_changed_message_is_never_released() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        let caller = executor.caller();
        let key = draw.bytes(32);
        let (messages, plain, mut sealed, _) = messages(&mut draw, &key, &[4096; 40]);
        let bad = draw.below(40) as usize;
        sealed[messages.items()[bad].at as usize + draw.below(4096) as usize] ^= 1 << draw.below(8);
        let decrypt = executor.register(AesGcm::new(executor.kernels(), &key, Direction::Decrypt).unwrap());
        let step = decrypt.step(Messages::clone(&messages));
        for path in [Path::Cpu, Path::Device] {
            for (on_device, host) in [(false, Host::Heap), (false, Host::Pinned), (true, Host::Heap)] {
                for is_apart in [true, false] {
                    let request = Request::new(step.clone(), memory(&device, &sealed, on_device, host)).on(path);
                    let poison = vec![0xdd; sealed.len()];
                    let request =
                        if is_apart { request.into(memory(&device, &poison, on_device, host)) } else { request };
                    let outcome = caller.run(request);
                    let error = outcome.result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BadTag, "{error}");
                    let written: Memory = outcome.destination.or(outcome.source).unwrap();
                    let found = content(&device, &written);
                    for (i, message) in messages.items().iter().enumerate() {
                        let range = message.at as usize..(message.at + message.len) as usize;
                        let is_right = if i == bad {
                            found[range].iter().all(|byte| *byte == 0)
                        } else {
                            found[range.clone()] == plain[range]
                        };
                        assert!(
                            is_right,
                            "message {i}, {bad} is bad: {} {path:?} {on_device} {host:?} {is_apart}",
                            device.id()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn digests_of_blocks() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        for digest in [Digest::Crc32c, Digest::Sha256] {
            let service = executor.register(Digests::new(executor.kernels(), digest).unwrap());
            for (len, block_bytes) in [(1, 16), (4096, 4096), (200_000, 512), (3 * SLOT_BYTES + 3, 4096)] {
                let (input, blocks) = (draw.bytes(len as usize), Digests::blocks(len, block_bytes));
                let of =
                    |block: &digest::Block| digest::oracle(digest, &input[block.at as usize..][..block.len as usize]);
                let results = vec![blocks.items().iter().flat_map(of).collect()];
                let steps = vec![service.step(Blocks::clone(&blocks))];
                check(&device, &executor, &Case { steps, input, output: None, results, in_place: false, gaps: vec![] });
            }
        }
        device_did_it(&executor);
    }
}

#[test]
fn raid6_generates_recovers_and_scrubs() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        for (data, chunk_bytes, stripes) in [(1, 16, 3), (4, 4096, 11), (6, 8192, 4)] {
            let geometry = Geometry { data, chunk_bytes };
            let chunk = chunk_bytes as usize;
            let (mut of_data, mut parity, mut whole) = (vec![], vec![], vec![]);
            for _ in 0..stripes {
                let chunks: Vec<Vec<u8>> = (0..data).map(|_| draw.bytes(chunk)).collect();
                let pq = raid6::oracle_generate(&chunks.iter().map(Vec::as_slice).collect::<Vec<_>>()).concat();
                whole.extend([chunks.concat(), pq.clone()].concat());
                of_data.extend(chunks.concat());
                parity.extend(pq);
            }
            let generate = executor.register(Generate::new(executor.kernels(), geometry).unwrap());
            let (steps, results) = (vec![generate.step(())], vec![vec![]]);
            let case = Case { steps, input: of_data, output: Some(parity), results, in_place: false, gaps: vec![] };
            check(&device, &executor, &case);

            let (p, q) = (geometry.p(), geometry.q());
            let kinds = [
                Loss::two(0, (data - 1).max(1)),
                Loss::one(data - 1),
                Loss::two(0, p),
                Loss::two(data - 1, q),
                Loss::two(p, q),
                Loss::NOTHING,
                Loss::one(p),
                Loss::one(q),
            ];
            let first = draw.below(8) as usize;
            let losses: Stripes = (0..stripes).map(|i| kinds[(first + i) % 8]).collect();
            let (mut holey, mut lost) = (whole.clone(), vec![]);
            for (stripe, loss) in losses.items().iter().enumerate() {
                for member in loss.members() {
                    let at = (stripe * geometry.members() as usize + member as usize) * chunk;
                    lost.extend(&whole[at..at + chunk]);
                    holey[at..at + chunk].fill(0xdd);
                }
            }
            let recover = executor.register(Recover::new(executor.kernels(), geometry).unwrap());
            let (steps, results) = (vec![recover.step(losses)], vec![vec![]]);
            check(
                &device,
                &executor,
                &Case { steps, input: holey, output: Some(lost), results, in_place: false, gaps: vec![] },
            );

            let mut damaged = whole.clone();
            let at = draw.below(damaged.len() as u64) as usize;
            damaged[at] ^= 0x40;
            let stripe_bytes = geometry.members() as usize * chunk;
            let verdicts: Vec<u8> = damaged
                .chunks_exact(stripe_bytes)
                .flat_map(|stripe| raid6::oracle_scrub(&stripe.chunks_exact(chunk).collect::<Vec<_>>()))
                .flat_map(|verdict| verdict.to_word().to_ne_bytes())
                .collect();
            let scrub = executor.register(Scrub::new(executor.kernels(), geometry).unwrap());
            let (steps, results) = (vec![scrub.step(())], vec![verdicts]);
            check(
                &device,
                &executor,
                &Case { steps, input: damaged, output: None, results, in_place: false, gaps: vec![] },
            );
        }
        device_did_it(&executor);
    }
}

/// Digest, decrypt, digest, copy: one trip.
#[test]
fn steps_of_a_chain_see_what_the_ones_before_have_made() {
    let mut draw = Draw::afresh();
    for device in devices(BackendKind::ALL) {
        let executor = executor(&device);
        let (key, counter) = (draw.bytes(32), [9; 16]);
        let ctr = executor.register(AesCtr::new(executor.kernels(), &key).unwrap());
        let crc = executor.register(Digests::new(executor.kernels(), Digest::Crc32c).unwrap());
        let sha = executor.register(Digests::new(executor.kernels(), Digest::Sha256).unwrap());
        for len in [100, 4096, 3 * SLOT_BYTES] {
            let input = draw.bytes(len as usize);
            let mut output = input.clone();
            aes_ctr::oracle(&key, counter, &mut output);
            let (small, large) = (Digests::blocks(len, 512), Digests::blocks(len, 4096));
            let of = |digest, data: &[u8], block_bytes| {
                data.chunks(block_bytes).flat_map(|block| digest::oracle(digest, block)).collect::<Vec<u8>>()
            };
            let results = vec![
                of(Digest::Crc32c, &input, 512),
                vec![],
                of(Digest::Sha256, &output, 4096),
                of(Digest::Crc32c, &output, 512),
            ];
            let steps = vec![crc.step(Blocks::clone(&small)), ctr.step(counter), sha.step(large), crc.step(small)];
            check(
                &device,
                &executor,
                &Case { steps, input, output: Some(output), results, in_place: true, gaps: vec![] },
            );
        }
        let chain = executor.statistics().into_iter().find(|of| of.service.contains(", ")).unwrap();
        assert!(chain.device_bytes > 0 && chain.taken_over == 0, "{chain:?}");
    }
}
