//! Frames and the ranges that they are mapped into.

use super::content::{all_of, download, noise, poison, where_capable};
use crate::{Access, Device, ErrorKind, FRAME_BYTES};
use fastrand::Rng;

pub(super) fn frames_move(device: &Device, random: &mut Rng) {
    where_capable(
        &device.capabilities().virtual_memory,
        || device.create_frame(),
        || {
            let stream = device.create_stream().unwrap();
            let range = device.reserve(4 * FRAME_BYTES).unwrap();
            let frames = [device.create_frame().unwrap(), device.create_frame().unwrap()];
            range.map(FRAME_BYTES, &frames[0], Access::ReadWrite).unwrap();
            range.map(2 * FRAME_BYTES, &frames[1], Access::ReadWrite).unwrap();
            let data = noise(random, 2 * FRAME_BYTES);
            let both = all_of(&range).part(FRAME_BYTES, 2 * FRAME_BYTES).unwrap();
            poison(&stream, both);
            stream.upload(both, &data).unwrap();
            assert!(download(&stream, both) == data, "a copy across two frames");
            // SAFETY: the downloads have synchronised the stream; no work is in flight.
            let (second, first) = unsafe { (range.unmap(2 * FRAME_BYTES).unwrap(), range.unmap(FRAME_BYTES).unwrap()) };
            range.map(0, &second, Access::Read).unwrap();
            range.map(3 * FRAME_BYTES, &first, Access::ReadWrite).unwrap();
            assert_eq!(range.mapped(), [0, 3 * FRAME_BYTES]);
            let (low, high) = data.split_at(FRAME_BYTES as usize);
            assert!(download(&stream, all_of(&range).part(0, FRAME_BYTES).unwrap()) == high, "the second frame moved");
            assert!(
                download(&stream, all_of(&range).part(3 * FRAME_BYTES, FRAME_BYTES).unwrap()) == low,
                "the first frame moved"
            );
            // One that is as long as two of them.
            let long = device.create_frame_of(2 * FRAME_BYTES).unwrap();
            range.map(FRAME_BYTES, &long, Access::ReadWrite).unwrap();
            poison(&stream, both);
            stream.upload(both, &data).unwrap();
            // SAFETY: as above; the frame before it is in the way of the next place.
            let long = unsafe { (range.unmap(0).unwrap(), range.unmap(FRAME_BYTES).unwrap()) }.1;
            range.map(0, &long, Access::ReadWrite).unwrap();
            assert!(download(&stream, all_of(&range).part(0, 2 * FRAME_BYTES).unwrap()) == data, "a long frame moved");
        },
    );
}

pub(super) fn places_are_checked(device: &Device, _: &mut Rng) {
    where_capable(
        &device.capabilities().virtual_memory,
        || device.reserve(1),
        || {
            let range = device.reserve(FRAME_BYTES + 1).unwrap();
            assert_eq!(range.len(), 2 * FRAME_BYTES);
            let frame = device.create_frame().unwrap();
            range.map(0, &frame, Access::ReadWrite).unwrap();
            for offset in [0, 1, 2 * FRAME_BYTES, u64::MAX] {
                assert_eq!(
                    range.map(offset, &frame, Access::ReadWrite).unwrap_err().kind(),
                    ErrorKind::BadArgument,
                    "{offset}"
                );
            }
            let long = device.create_frame_of(2 * FRAME_BYTES).unwrap();
            for offset in [0, FRAME_BYTES] {
                let error = range.map(offset, &long, Access::ReadWrite).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadArgument, "{offset}");
            }
            for len in [0, FRAME_BYTES - 1, FRAME_BYTES + 1] {
                assert_eq!(device.create_frame_of(len).unwrap_err().kind(), ErrorKind::BadArgument, "{len}");
            }
            // SAFETY: nothing is in flight.
            assert_eq!(unsafe { range.unmap(FRAME_BYTES) }.unwrap_err().kind(), ErrorKind::BadArgument);
        },
    );
}

pub(super) fn frames_are_shared(device: &Device, random: &mut Rng) {
    where_capable(
        &device.capabilities().export_fd,
        || device.create_frame(),
        || {
            let stream = device.create_stream().unwrap();
            for frames in [1, 2, 5] {
                let len = frames * FRAME_BYTES;
                let (here, there) = (device.reserve(len).unwrap(), device.reserve(len).unwrap());
                let frame = device.create_frame_of(len).unwrap();
                here.map(0, &frame, Access::ReadWrite).unwrap();
                let imported = device.import_frame_of(frame.export().unwrap(), len).unwrap();
                assert_eq!(imported.len(), len);
                there.map(0, &imported, Access::ReadWrite).unwrap();
                poison(&stream, all_of(&there));
                let data = noise(random, len);
                stream.upload(all_of(&here), &data).unwrap();
                drop((here, frame));
                assert!(download(&stream, all_of(&there)) == data, "the memory outlives its exporter");
            }
        },
    );
}

pub(super) fn imports_are_checked(device: &Device, _: &mut Rng) {
    let no_frame = || std::fs::File::open("/dev/null").unwrap().into();
    where_capable(
        &device.capabilities().export_fd,
        || device.import_frame(no_frame()),
        || {
            let frame = device.create_frame_of(3 * FRAME_BYTES).unwrap();
            let refused = |len| device.import_frame_of(frame.export().unwrap(), len).unwrap_err();
            for frames in [1, 2, 4, 5] {
                let error = refused(frames * FRAME_BYTES);
                assert_eq!(error.kind(), ErrorKind::BadArgument, "{frames}: {error}");
            }
            for len in [0, 1, 3 * FRAME_BYTES - 1, 3 * FRAME_BYTES + 1] {
                assert_eq!(refused(len).kind(), ErrorKind::BadArgument, "{len}");
            }
            device.import_frame_of(frame.export().unwrap(), 3 * FRAME_BYTES).unwrap();
            device.import_frame(no_frame()).unwrap_err();
        },
    );
}

pub(super) fn frames_begin_as_zeroes(device: &Device, _: &mut Rng) {
    if !device.zeroes_frames() {
        println!("  not on this device: its driver does not say so");
        return;
    }
    let (stream, len) = (device.create_stream().unwrap(), 2 * FRAME_BYTES);
    for _ in 0..3 {
        let range = device.reserve(len).unwrap();
        range.map(0, &device.create_frame_of(len).unwrap(), Access::ReadWrite).unwrap();
        assert!(download(&stream, all_of(&range)).iter().all(|byte| *byte == 0), "a frame has what another one had");
        poison(&stream, all_of(&range));
    }
}
