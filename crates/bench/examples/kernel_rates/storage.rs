//! The kernels of the storage services, on random data.
//!
//! Each is compared with its oracle once before it is measured. The rates of RAID-6 count what is read.

use super::{Outcome, SEED, measure};
use bifolio_device::{Allocation, Module, Stream};
use bifolio_kernels::aes::{Direction, KeySize};
use bifolio_kernels::aes_gcm::{self, Keyed, Layout, Message};
use bifolio_kernels::aes_xts::{self, IvUnit, Sectors};
use bifolio_kernels::digest::{self, Digest};
use bifolio_kernels::known_answer::Draw;
use bifolio_kernels::raid6::{self, Geometry, Loss};
use bifolio_kernels::{Addressing, Kernel, aes_ctr};

const SIZES: [KeySize; 2] = [KeySize::Aes128, KeySize::Aes256];

/// The bytes of a block, as in gocryptfs and in most file systems.
const BLOCK: u64 = 4096;

pub(crate) fn measure_all(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    randomise(stream, a)?;
    raid6(stream, a)?;
    xts(stream, a, b)?;
    gcm(stream, a, b)?;
    ctr(stream, a, b)?;
    for kind in [Digest::Crc32c, Digest::Sha256] {
        digests(stream, kind, a)?;
    }
    Ok(())
}

/// Fills memory with one random piece again and again.
fn randomise(stream: &Stream, memory: &Allocation) -> Outcome {
    let piece = Draw::from_seed(SEED).bytes(memory.len().min(64 << 20) as usize);
    for at in (0..memory.len()).step_by(piece.len()) {
        let len = (memory.len() - at).min(piece.len() as u64);
        stream.upload(memory.slice().part(at, len)?, &piece[..len as usize])?;
    }
    Ok(())
}

fn on_device(stream: &Stream, bytes: &[u8]) -> Outcome<Allocation> {
    let memory = stream.device().alloc(bytes.len() as u64)?;
    stream.upload(memory.slice(), bytes)?;
    Ok(memory)
}

fn xts(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    let module = stream.device().load_module(aes_xts::AesXts.source())?;
    for size in SIZES {
        aes_xts::Case::draw(&mut Draw::afresh(), size, 99, 4096).run(stream, &module)?;
        let schedules = on_device(stream, aes_xts::schedules(&Draw::from_seed(SEED).bytes(2 * size.bytes()))?.bytes())?;
        let tweaks = stream.device().alloc(a.len() / 512 * aes_xts::TWEAK_BYTES)?;
        for bytes in [512, 4096] {
            for direction in [Direction::Encrypt, Direction::Decrypt] {
                let len = a.len() / u64::from(bytes) * u64::from(bytes);
                let sectors = Sectors { bytes, first_iv: 1 << 33, iv_unit: IvUnit::Bytes512 };
                let operands = aes_xts::Operands {
                    schedules: schedules.slice(),
                    tweaks: tweaks.slice(),
                    src: a.slice().part(0, len)?,
                    dst: b.slice().part(0, len)?,
                };
                // SAFETY: all allocations outlive the measurement, which waits for its work.
                let launch = || unsafe { aes_xts::launch(stream, &module, direction, size, sectors, operands) };
                measure(&format!("XTS, {size:?}, {direction:?}, sectors of {bytes}"), len, 2.0, stream, launch)?;
            }
        }
    }
    Ok(())
}

fn ctr(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    let module = stream.device().load_module(aes_ctr::AesCtr.source())?;
    for size in SIZES {
        aes_ctr::Case::draw(&mut Draw::afresh(), size, 99, 10_000).run(stream, &module)?;
        let schedules = on_device(stream, aes_ctr::schedules(&Draw::from_seed(SEED).bytes(size.bytes()))?.bytes())?;
        let whole: Vec<_> = aes_ctr::extents(aes_ctr::Extent::new(0, 0, a.len(), [7; 16])).collect();
        let short =
            (0..a.len() / 1536).map(|i| aes_ctr::Extent::new(i * 1536, i * 1536, 1500, [i as u8; 16])).collect();
        for (what, pieces) in [("one stream", whole), ("streams of 1500 bytes", short)] {
            let table = on_device(stream, &aes_ctr::encode(&pieces))?;
            let operands =
                aes_ctr::Operands { src: Addressing::Relative(a.slice()), dst: Addressing::Relative(b.slice()) };
            let bytes = pieces.iter().map(|piece| piece.len).sum();
            // SAFETY: as in `xts`.
            let launch =
                || unsafe { aes_ctr::launch(stream, &module, size, schedules.slice(), operands, table.slice()) };
            measure(&format!("CTR, {size:?}, {what}"), bytes, 2.0, stream, launch)?;
        }
    }
    Ok(())
}

fn gcm(stream: &Stream, a: &Allocation, b: &Allocation) -> Outcome {
    let module = stream.device().load_module(aes_gcm::AesGcm.source())?;
    let count = a.len() / BLOCK;
    let meta = on_device(stream, &Draw::from_seed(SEED).bytes(count as usize * 32))?;
    let starts = stream.device().alloc(count * aes_gcm::START_BYTES)?;
    let rights = stream.device().alloc(count * 4)?;
    for size in SIZES {
        aes_gcm::Case::draw(&mut Draw::afresh(), size, 99, BLOCK).run(stream, &module)?;
        let schedules = on_device(stream, aes_gcm::schedules(&Draw::from_seed(SEED).bytes(size.bytes()))?.bytes())?;
        let keyed = Keyed { size, schedules: schedules.slice(), starts: starts.slice() };
        let message = |i: u64| {
            let places = Layout { src: i * BLOCK, dst: i * BLOCK, nonce: i * 32, tag: i * 32 + 16 };
            let aad = [&i.to_be_bytes()[..], &[9; 16]].concat();
            Message::new(places, BLOCK, 16, &aad)
        };
        let table = (0..count).map(message).collect::<Result<Vec<_>, _>>()?;
        let table = on_device(stream, &aes_gcm::encode(&table))?;
        let operands = |from: &'static str| {
            let (src, dst) = if from == "a" { (a, b) } else { (b, a) };
            aes_gcm::Operands {
                src: Addressing::Relative(src.slice()),
                dst: Addressing::Relative(dst.slice()),
                meta: Addressing::Relative(meta.slice()),
            }
        };
        // SAFETY: as in `xts`.
        let encrypt = || unsafe { aes_gcm::encrypt(stream, &module, keyed, operands("a"), table.slice()) };
        measure(&format!("GCM, {size:?}, Encrypt, blocks of {BLOCK}"), count * BLOCK, 2.0, stream, encrypt)?;
        // SAFETY: as in `xts`. What was encrypted from `a` is right in `b`, and goes back where it came from.
        let decrypt =
            || unsafe { aes_gcm::decrypt(stream, &module, keyed, operands("b"), table.slice(), rights.slice()) };
        measure(&format!("GCM, {size:?}, Decrypt, blocks of {BLOCK}"), count * BLOCK, 2.0, stream, decrypt)?;
        let mut flags = vec![0; count as usize * 4];
        stream.download(&mut flags, rights.slice())?;
        if flags.chunks_exact(4).any(|flag| flag != 1_u32.to_ne_bytes()) {
            return Err("a tag was wrong".into());
        }
    }
    Ok(())
}

fn raid6(stream: &Stream, a: &Allocation) -> Outcome {
    let module = stream.device().load_module(raid6::Raid6.source())?;
    for (data, chunk_bytes) in [(10, 64 << 10), (10, 512 << 10), (4, 64 << 10)] {
        let geometry = Geometry { data, chunk_bytes };
        raid6::Case::draw(&mut Draw::afresh(), Geometry { data, chunk_bytes: 20_480 }, 17).run(stream, &module)?;
        let members = u64::from(geometry.members());
        // Each member is one long buffer, as a disk's part of memory is.
        let stripes = a.len() / (members * chunk_bytes);
        let place = |stripe: u64, member: u64| (member * stripes + stripe) * chunk_bytes;
        let table: Vec<Vec<_>> =
            (0..stripes).map(|stripe| (0..members).map(|member| place(stripe, member)).collect()).collect();
        let table = on_device(stream, &raid6::encode(&table))?;
        let losses = vec![Loss::two(1, data / 2 + 1); stripes as usize];
        let losses = on_device(stream, &raid6::encode_losses(&losses, geometry))?;
        let verdicts = stream.device().alloc(stripes * geometry.pieces() * 4)?;
        let (base, chunks, width) = (Addressing::Relative(a.slice()), stripes * chunk_bytes, f64::from(data));
        let what = format!("{data} + 2 members, chunks of {} KiB", chunk_bytes >> 10);
        // SAFETY: as in `xts`; the chunks lie beside each other.
        let generate = || unsafe { raid6::generate(stream, &module, geometry, base, table.slice()) };
        measure(&format!("P and Q, {what}"), chunks * u64::from(data), 1.0 + 2.0 / width, stream, generate)?;
        // SAFETY: as above.
        let recover = || unsafe { raid6::recover(stream, &module, geometry, base, table.slice(), losses.slice()) };
        measure(&format!("recovery of two, {what}"), chunks * u64::from(data), 1.0 + 2.0 / width, stream, recover)?;
        // SAFETY: as above.
        let scrub = || unsafe { raid6::scrub(stream, &module, geometry, base, table.slice(), verdicts.slice()) };
        measure(&format!("scrub, {what}"), chunks * members, 1.0, stream, scrub)?;
    }
    Ok(())
}

fn digests(stream: &Stream, kind: Digest, a: &Allocation) -> Outcome {
    let module: Module = stream.device().load_module(kind.source())?;
    digest::Case::draw(&mut Draw::afresh(), 99, BLOCK).run(kind, stream, &module)?;
    let count = a.len() / BLOCK;
    let blocks: Vec<_> = (0..count).map(|i| digest::Block { at: i * BLOCK, len: BLOCK }).collect();
    let table = on_device(stream, &digest::encode(&blocks))?;
    let digests = stream.device().alloc(count * kind.bytes())?;
    let base = Addressing::Relative(a.slice());
    // SAFETY: as in `xts`.
    let launch = || unsafe { digest::launch(stream, &module, kind, base, table.slice(), digests.slice()) };
    measure(&format!("{kind:?}, blocks of {BLOCK}"), count * BLOCK, 1.0, stream, launch)
}
