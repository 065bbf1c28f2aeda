//! Copies and fills: every byte of the range, and no other.

use super::content::{POISON, download, noise, poison};
use crate::{Device, ErrorKind, Rows};
use fastrand::Rng;

pub(super) fn copies_round_trip(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    for len in [1, 2, 7, 8, 63, 64, 4095, 4096, 4097, 65_537, (1 << 20) + 3, 9 << 20] {
        let (before, after) = (random.u64(..5000), random.u64(..70));
        let memory = device.alloc(before + len + after).unwrap();
        poison(&stream, memory.slice());
        let data = noise(random, len);
        stream.upload(memory.slice().part(before, len).unwrap(), &data).unwrap();
        let seen = download(&stream, memory.slice());
        let (head, rest) = seen.split_at(before as usize);
        let (body, tail) = rest.split_at(len as usize);
        assert!(body == data, "{len} bytes came back changed");
        assert!(head.iter().chain(tail).all(|byte| *byte == POISON), "a copy of {len} bytes wrote beside its range");
    }
    let empty = device.alloc(0).unwrap();
    stream.upload(empty.slice(), &[]).unwrap();
}

pub(super) fn rows_round_trip(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    for bytes in [1, 5, 64, 4096, 65_536, 500_000] {
        let count = 1 + random.u64(..9);
        let pitch = bytes + [0, 1, random.u64(..3 * bytes + 9)][random.u64(..3) as usize];
        let (rows, before) = (Rows { bytes, pitch, count }, random.u64(..300));
        let memory = device.alloc(before + rows.span() + 17).unwrap();
        poison(&stream, memory.slice());
        let place = memory.slice().part(before, rows.span()).unwrap();
        let mut pinned = device.alloc_pinned((bytes * count) as usize).unwrap();
        let data = noise(random, bytes * count);
        pinned.bytes_mut().copy_from_slice(&data);
        // SAFETY: all memory lives until the download, and nobody else uses the pinned bytes.
        unsafe { stream.copy_rows_to_device(place, pinned.as_ptr(), rows) }.unwrap();
        let mut expected = vec![POISON; (before + rows.span() + 17) as usize];
        for row in 0..count {
            let (at, from) = ((before + row * pitch) as usize, (row * bytes) as usize);
            expected[at..at + bytes as usize].copy_from_slice(&data[from..from + bytes as usize]);
        }
        assert!(download(&stream, memory.slice()) == expected, "{rows:?} to the device");
        pinned.bytes_mut().fill(POISON);
        // SAFETY: as above; the synchronisation comes before the comparison.
        unsafe { stream.copy_rows_to_host(pinned.as_mut_ptr(), place, rows) }.unwrap();
        stream.synchronize().unwrap();
        assert!(pinned.bytes() == data, "{rows:?} to the host");
    }
    let memory = device.alloc(100).unwrap();
    for rows in [Rows { bytes: 10, pitch: 9, count: 2 }, Rows { bytes: 10, pitch: 50, count: 3 }] {
        // SAFETY: refused before anything is enqueued.
        let refused = unsafe { stream.copy_rows_to_device(memory.slice(), [0; 30].as_ptr(), rows) }.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadArgument);
    }
}

pub(super) fn device_copies_and_fills(device: &Device, random: &mut Rng) {
    let stream = device.create_stream().unwrap();
    let (from, to) = (device.alloc(1 << 20).unwrap(), device.alloc(1 << 20).unwrap());
    let data = noise(random, 1 << 20);
    stream.upload(from.slice(), &data).unwrap();
    for _ in 0..10 {
        poison(&stream, to.slice());
        let len = 1 + random.u64(..1 << 19);
        let (src, dst) = (random.u64(..1 << 19), random.u64(..1 << 19));
        let (fill_at, value) = (random.u64(..dst.max(1)), random.u8(..));
        let filled = dst.saturating_sub(fill_at);
        // SAFETY: both allocations outlive the synchronising download below.
        unsafe {
            stream.copy_on_device(to.slice().part(dst, len).unwrap(), from.slice().part(src, len).unwrap()).unwrap();
            stream.fill(to.slice().part(fill_at, filled).unwrap(), value).unwrap();
        }
        let mut expected = vec![POISON; 1 << 20];
        expected[dst as usize..(dst + len) as usize].copy_from_slice(&data[src as usize..(src + len) as usize]);
        expected[fill_at as usize..(fill_at + filled) as usize].fill(value);
        assert!(download(&stream, to.slice()) == expected, "copy {src}->{dst}+{len}, fill {fill_at}+{filled}");
    }
}
