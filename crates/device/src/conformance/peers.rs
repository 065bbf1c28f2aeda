//! Copies between devices of one backend, and their order.

use super::content::{POISON, all_of, download, noise, poison};
use super::gates::stays_undone;
use crate::{Access, AddressRange, Device, DeviceSlice, ErrorKind, FRAME_BYTES, Stream};
use fastrand::Rng;

/// Copies from `peer`, which may be `device` itself, into `device`; where the backend refuses it,
/// shows that it does so as `Unsupported`.
pub(super) fn copies_arrive(device: &Device, peer: &Device, random: &mut Rng) {
    let (stream, there) = (device.create_stream().unwrap(), peer.create_stream().unwrap());
    for len in [1, 7, 4096, 65_537, (1 << 20) + 3, 9 << 20] {
        let (before, after) = (random.u64(..5000), random.u64(..70));
        let (to, from) = (device.alloc(before + len + after).unwrap(), peer.alloc(len).unwrap());
        poison(&stream, to.slice());
        let data = noise(random, len);
        there.upload(from.slice(), &data).unwrap();
        let place = to.slice().part(before, len).unwrap();
        // SAFETY: both allocations live until the download has synchronised the stream.
        if let Err(error) = unsafe { stream.copy_from_peer(place, peer, from.slice()) } {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!device.capabilities().peer_access.is_yes(), "a device with peer access refuses a copy: {error}");
            println!("  not on this device: {error}");
            return;
        }
        let seen = download(&stream, to.slice());
        let (head, rest) = seen.split_at(before as usize);
        let (body, tail) = rest.split_at(len as usize);
        assert!(body == data, "{len} bytes from {} came changed", peer.id());
        assert!(head.iter().chain(tail).all(|byte| *byte == POISON), "a copy of {len} bytes wrote beside its range");
        assert!(download(&there, from.slice()) == data, "a copy changed its source");
    }
    waits_order_devices(&stream, &there, random);
    frames_are_copied(&stream, &there, random);
}

/// A stream of one device waits for work of the other, which a gate holds back for certain, and
/// the other for the copy before it writes the source again.
fn waits_order_devices(stream: &Stream, there: &Stream, random: &mut Rng) {
    const LEN: u64 = 4 << 20;
    let (device, peer) = (stream.device(), there.device());
    let (to, from) = (device.alloc(LEN).unwrap(), peer.alloc(LEN).unwrap());
    let mut pinned = peer.alloc_pinned(LEN as usize).unwrap();
    for _ in 0..5 {
        pinned.bytes_mut().copy_from_slice(&noise(random, LEN));
        poison(stream, to.slice());
        poison(there, from.slice());
        let gate = there.gate().unwrap();
        // SAFETY: all memory lives until both streams are synchronised, and nobody writes `pinned`.
        unsafe {
            there.copy_to_device(from.slice(), pinned.as_ptr()).unwrap();
            stream.wait(&there.record().unwrap()).unwrap();
            stream.copy_from_peer(to.slice(), peer, from.slice()).unwrap();
            let copied = stream.record().unwrap();
            there.wait(&copied).unwrap();
            there.fill(from.slice(), POISON).unwrap();
            stays_undone(&copied);
        }
        gate.open();
        there.synchronize().unwrap();
        assert!(download(stream, to.slice()) == pinned.bytes(), "streams of two devices ran out of order");
    }
}

/// Kernels of a device may read another's frames where the two reach each other, and nothing where there is no frame.
fn lets_read(from: &AddressRange, device: &Device, peer: &Device) {
    let is_near = device.id() == peer.id() || device.capabilities().peer_access.is_yes();
    for bytes in [0..2 * FRAME_BYTES, 5..FRAME_BYTES + 1, FRAME_BYTES..2 * FRAME_BYTES] {
        assert!(is_near || !from.let_read(bytes.clone(), device).unwrap(), "{bytes:?} are said to be read");
        assert_eq!(from.let_read(bytes.clone(), device).unwrap(), from.let_read(bytes, device).unwrap());
    }
    assert!(!from.let_read(FRAME_BYTES..2 * FRAME_BYTES + 1, device).unwrap(), "bytes without a frame are read");
}

/// Mapped frames, which drivers treat otherwise than plain allocations.
fn frames_are_copied(stream: &Stream, there: &Stream, random: &mut Rng) {
    let (device, peer) = (stream.device(), there.device());
    for device in [device, peer] {
        if let Some(reason) = device.capabilities().virtual_memory.reason() {
            println!("  no frames on {}: {reason}", device.id());
            return;
        }
    }
    let range_of = |device: &Device| {
        let range = device.reserve(2 * FRAME_BYTES).unwrap();
        for offset in [0, FRAME_BYTES] {
            range.map(offset, &device.create_frame().unwrap(), Access::ReadWrite).unwrap();
        }
        range
    };
    let (to, from) = (range_of(device), range_of(peer));
    lets_read(&from, device, peer);
    let (to, from): (DeviceSlice<'_>, _) = (all_of(&to), all_of(&from));
    poison(stream, to);
    let data = noise(random, 2 * FRAME_BYTES);
    there.upload(from, &data).unwrap();
    // SAFETY: both ranges live, fully mapped, until the download has synchronised the stream.
    unsafe { stream.copy_from_peer(to, peer, from) }.unwrap();
    assert!(download(stream, to) == data, "frames of {} came changed", peer.id());
}
