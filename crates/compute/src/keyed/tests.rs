//! Each service against its oracle, on every device of this machine, by its kernels and without them.

use super::{DeviceGcm, DeviceRaid6, DeviceXts, Workspace, gcm};
use bifolio_device::{Device, DeviceChoice, Stream, discover, open};
use bifolio_kernels::Addressing;
use bifolio_kernels::aes::Direction;
use bifolio_kernels::aes_gcm::{self, Blocks, Layout, Message};
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::{self, Geometry, Loss};

fn devices() -> Vec<Device> {
    let found = discover().into_iter().flat_map(|report| report.devices);
    found.map(|info| open(DeviceChoice::Exactly(info.id)).unwrap()).collect()
}

fn download(stream: &Stream, memory: &bifolio_device::Allocation) -> Vec<u8> {
    let mut bytes = vec![0xee; memory.len() as usize];
    stream.download(&mut bytes, memory.slice()).unwrap();
    bytes
}

/// What dropping a secret does before its memory is freed.
#[test]
fn secrets_are_cleared_to_the_last_byte_and_nothing_else_is() {
    let mut draw = Draw::afresh();
    for device in devices() {
        let stream = device.create_stream().unwrap();
        for len in [1, 15, 16, 4097, 1 << 20] {
            let memory = device.alloc(len + 32).unwrap();
            let content = draw.bytes(len as usize + 32);
            stream.upload(memory.slice(), &content).unwrap();
            super::wipe(memory.slice().part(16, len).unwrap(), &device).unwrap();
            let seen = download(&stream, &memory);
            assert!(seen[16..16 + len as usize].iter().all(|byte| *byte == 0), "{} {len}", device.id());
            let end = 16 + len as usize;
            assert!(seen[..16] == content[..16] && seen[end..] == content[end..], "{} {len}", device.id());
        }
    }
}

#[test]
fn xts_is_its_oracle_in_place_and_apart() {
    let mut draw = Draw::afresh();
    for device in devices() {
        let mut workspace = Workspace::new(&device).unwrap();
        for (key_bytes, sector_bytes, count) in [(32, 512, 9), (64, 4096, 3), (64, 512, 300)] {
            let (key, plain) = (draw.bytes(key_bytes), draw.bytes(sector_bytes * count));
            let sectors = Sectors { bytes: sector_bytes as u32, first_iv: 1 << 33, iv_unit: IvUnit::Bytes512 };
            let mut expected = plain.clone();
            aes_xts::oracle(Direction::Encrypt, &key, sectors, &mut expected);
            for has_kernels in [true, false] {
                let mut xts = DeviceXts::new(&device, &key).unwrap();
                assert_eq!(xts.module.is_some(), device.capabilities().kernels.reason().is_none(), "{}", xts.status());
                xts.module = xts.module.filter(|_| has_kernels);
                let (a, b) = (device.alloc(plain.len() as u64).unwrap(), device.alloc(plain.len() as u64).unwrap());
                workspace.stream().upload(a.slice(), &plain).unwrap();
                // SAFETY: both are this test's own.
                unsafe {
                    xts.run(&mut workspace, Direction::Encrypt, sectors, (a.slice(), b.slice())).unwrap();
                    assert_eq!(download(workspace.stream(), &b), expected, "{}", device.id());
                    xts.run(&mut workspace, Direction::Decrypt, sectors, (b.slice(), b.slice())).unwrap();
                }
                assert_eq!(download(workspace.stream(), &b), plain, "{}", device.id());
            }
        }
    }
}

#[test]
fn gcm_is_its_oracle_and_writes_nothing_of_what_was_changed() {
    let (mut draw, block, count) = (Draw::afresh(), 4096_u64, 7_u64);
    // As gocryptfs has them: nonce, text and tag one behind the other.
    let stride = 16 + block + 16;
    for device in devices() {
        let mut workspace = Workspace::new(&device).unwrap();
        let (key, plain) = (draw.bytes(32), draw.bytes((count * block) as usize));
        let aads: Vec<Vec<u8>> = (0..count).map(|_| draw.bytes(24)).collect();
        let nonces: Vec<Vec<u8>> = (0..count).map(|_| draw.bytes(16)).collect();
        let messages: Vec<Message> = (0..count)
            .map(|i| {
                let at = i * stride;
                let places = Layout { src: at + 16, dst: i * block, nonce: at, tag: at + 16 + block };
                Message::new(places, block, 16, &aads[i as usize]).unwrap()
            })
            .collect();
        let mut sealed = vec![];
        for i in 0..count as usize {
            let mut text = plain[i * block as usize..][..block as usize].to_vec();
            let tag = aes_gcm::oracle_encrypt(&key, &nonces[i], &aads[i], &mut text);
            sealed.extend([&nonces[i][..], &text, &tag].concat());
        }
        let bad = 1 + draw.bytes(1)[0] as usize % (count as usize - 1);
        let mut damaged = sealed.clone();
        damaged[bad * stride as usize + 16 + draw.bytes(1)[0] as usize] ^= 4;
        for has_kernels in [true, false] {
            let mut gcm = DeviceGcm::new(&device, &key).unwrap();
            assert_eq!(gcm.module.is_some(), device.capabilities().kernels.reason().is_none(), "{}", gcm.status());
            gcm.module = gcm.module.filter(|_| has_kernels);
            let (cipher, text) =
                (device.alloc(sealed.len() as u64).unwrap(), device.alloc(plain.len() as u64).unwrap());
            workspace.stream().upload(cipher.slice(), &damaged).unwrap();
            workspace.stream().upload(text.slice(), &vec![0xdd; plain.len()]).unwrap();
            let operands = gcm::Operands { src: cipher.slice(), dst: text.slice(), meta: cipher.slice() };
            // SAFETY: both are this test's own.
            let rights = unsafe { gcm.decrypt(&mut workspace, &messages, operands) }.unwrap();
            let expected: Vec<bool> = (0..count as usize).map(|i| i != bad).collect();
            assert_eq!(rights, expected, "{}", device.id());
            let mut with_gap = plain.clone();
            with_gap[bad * block as usize..][..block as usize].fill(0xdd);
            assert_eq!(download(workspace.stream(), &text), with_gap, "{}", device.id());

            // The other way, into a copy without texts and tags.
            let mut bare = vec![0xcc; sealed.len()];
            for (i, nonce) in nonces.iter().enumerate() {
                bare[i * stride as usize..][..16].copy_from_slice(nonce);
            }
            workspace.stream().upload(cipher.slice(), &bare).unwrap();
            workspace.stream().upload(text.slice(), &plain).unwrap();
            let back: Vec<Message> = (0..count)
                .map(|i| {
                    let at = i * stride;
                    let places = Layout { src: i * block, dst: at + 16, nonce: at, tag: at + 16 + block };
                    Message::new(places, block, 16, &aads[i as usize]).unwrap()
                })
                .collect();
            let operands = gcm::Operands { src: text.slice(), dst: cipher.slice(), meta: cipher.slice() };
            // SAFETY: as above.
            unsafe { gcm.encrypt(&mut workspace, &back, operands) }.unwrap();
            assert_eq!(download(workspace.stream(), &cipher), sealed, "{}", device.id());
        }
    }
}

#[test]
fn blocks_in_a_row_are_opened_without_a_table_of_the_host() {
    let mut draw = Draw::afresh();
    for device in devices() {
        let mut workspace = Workspace::new(&device).unwrap();
        let key = draw.bytes(32);
        let gcm = DeviceGcm::new(&device, &key).unwrap();
        if !gcm.is_on_device() {
            bifolio_testing::skip(gcm.status());
            continue;
        }
        // The second one is larger, so that the workspace's scratch is made anew while the first one runs.
        for count in [3, 700] {
            let (block_bytes, last) = (4096, 1 + draw.below(4096));
            let id: [u8; 16] = draw.bytes(16).try_into().unwrap();
            let len = (count - 1) * block_bytes + last;
            let blocks = Blocks { sealed: 0, plain: 0, first: draw.below(1 << 40), len, block_bytes, id };
            let plain = draw.bytes(len as usize);
            let mut sealed = vec![];
            for (i, text) in plain.chunks(block_bytes as usize).enumerate() {
                let (nonce, mut text) = (draw.bytes(16), text.to_vec());
                let aad = [&(blocks.first + i as u64).to_be_bytes()[..], &id].concat();
                let tag = aes_gcm::oracle_encrypt(&key, &nonce, &aad, &mut text);
                sealed.extend([nonce, text, tag.to_vec()].concat());
            }
            let bad = draw.below(count);
            sealed[(bad * (block_bytes + 32)) as usize + 20] ^= 8;
            let (from, to, flags) = (sealed.len() as u64, len, count * 4);
            let [from, to, flags] = [from, to, flags].map(|bytes| device.alloc(bytes).unwrap());
            workspace.stream().upload(from.slice(), &sealed).unwrap();
            workspace.stream().upload(to.slice(), &vec![0xdd; plain.len()]).unwrap();
            workspace.stream().upload(flags.slice(), &vec![0xdd; flags.len() as usize]).unwrap();
            let operands = gcm::Operands { src: from.slice(), dst: to.slice(), meta: from.slice() };
            // SAFETY: all are this test's own, which waits below.
            unsafe { gcm.enqueue_blocks(&mut workspace, &blocks, operands, flags.slice()) }.unwrap();
            let mut expected = plain;
            let gap = (bad * block_bytes) as usize..((bad + 1) * block_bytes).min(len) as usize;
            expected[gap].fill(0xdd);
            assert!(download(workspace.stream(), &to) == expected, "{} {count}", device.id());
            let rights: Vec<u8> = (0..count).flat_map(|i| u32::from(i != bad).to_ne_bytes()).collect();
            assert!(download(workspace.stream(), &flags) == rights, "{} {count}", device.id());
            // SAFETY: as above.
            let few =
                unsafe { gcm.enqueue_blocks(&mut workspace, &blocks, operands, flags.slice().part(0, 4).unwrap()) };
            assert!(few.is_err() && { workspace.stream().synchronize().is_ok() });
        }
    }
}

#[test]
fn stripes_get_back_what_they_have_lost() {
    let mut draw = Draw::afresh();
    let geometry = Geometry { data: 4, chunk_bytes: 8192 };
    let losses = [Loss::two(0, 3), Loss::one(2), Loss::two(1, 4), Loss::two(2, 5), Loss::two(4, 5), Loss::NOTHING];
    let chunk = geometry.chunk_bytes as usize;
    for device in devices() {
        let mut workspace = Workspace::new(&device).unwrap();
        let mut whole = vec![];
        for _ in &losses {
            let data: Vec<Vec<u8>> = (0..geometry.data).map(|_| draw.bytes(chunk)).collect();
            let [p, q] = raid6::oracle_generate(&data.iter().map(Vec::as_slice).collect::<Vec<_>>());
            whole.extend([data.concat(), p, q].concat());
        }
        let places = |stripe: usize| (0..6).map(|member| ((stripe * 6 + member) * chunk) as u64).collect();
        let stripes: Vec<Vec<u64>> = (0..losses.len()).map(places).collect();
        let mut holey = whole.clone();
        for (stripe, loss) in losses.iter().enumerate() {
            for member in loss.members() {
                holey[(stripe * 6 + member as usize) * chunk..][..chunk].fill(0xdd);
            }
        }
        for has_kernels in [true, false] {
            let mut service = DeviceRaid6::new(&device).unwrap();
            assert_eq!(
                service.module.is_some(),
                device.capabilities().kernels.reason().is_none(),
                "{}",
                service.status()
            );
            service.module = service.module.filter(|_| has_kernels);
            let memory = device.alloc(whole.len() as u64).unwrap();
            workspace.stream().upload(memory.slice(), &holey).unwrap();
            let base = Addressing::Relative(memory.slice());
            // SAFETY: the memory is this test's own.
            unsafe { service.recover(&mut workspace, geometry, base, &stripes, &losses) }.unwrap();
            assert_eq!(download(workspace.stream(), &memory), whole, "{}", device.id());
        }
    }
}
