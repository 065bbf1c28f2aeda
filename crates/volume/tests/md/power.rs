//! Power lost at every boundary between two writes, in arrays with and without all members: what was flushed
//! is read afterwards, blocks of writes under way are old or new, and P and Q fit.

use crate::support::{Devices, content, created, open, range, without};
use bifolio_io::Cancel;
use bifolio_kernels::known_answer::Draw;
use bifolio_volume::faults::{Faults, FaultyDevice};
use bifolio_volume::md::{Raid6, Rotation};
use bifolio_volume::{BlockDevice, Geometry, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// One supply for all members: after so many writes and flushes of any of them, power is gone for all.
#[derive(Debug)]
struct Powered {
    below: Arc<FaultyDevice>,
    left: Arc<AtomicI64>,
}

impl Powered {
    fn spend(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.below.set_faults(Faults { power_for: Some(0), ..Faults::default() });
        }
    }
}

impl BlockDevice for Powered {
    fn name(&self) -> String {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.left.load(Ordering::Relaxed) < 0 {
            self.below.set_faults(Faults { power_for: Some(0), ..Faults::default() });
        }
        self.below.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.spend();
        self.below.write(offset, data)
    }

    fn flush(&self) -> Result<()> {
        self.spend();
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below.discard(offset, len)
    }
}

/// What the array may hold: what was flushed, and for each byte what was written since, oldest first.
struct Model {
    flushed: Vec<u8>,
    since: Vec<(usize, Vec<u8>)>,
}

impl Model {
    /// A block of the smallest size is as one of the writes left it.
    fn check(&self, found: &[u8], about: &str) {
        for (block, found) in found.chunks(FaultyDevice::BLOCK_BYTES).enumerate() {
            let at = block * FaultyDevice::BLOCK_BYTES;
            let mut now = self.flushed[at..at + found.len()].to_vec();
            let mut is_possible = now == found;
            for (offset, data) in &self.since {
                let (start, end) = ((*offset).max(at), (offset + data.len()).min(at + found.len()));
                if start < end {
                    now[start - at..end - at].copy_from_slice(&data[start - offset..end - offset]);
                    is_possible |= now == found;
                }
            }
            assert!(is_possible, "block {block} is neither old nor new; {about}");
        }
    }
}

/// Writes, flushes and loses power after `left` requests; what the model expects, and whether power was lost.
fn run(devices: &Devices, left: i64, draw: &mut Draw, base: &[u8]) -> (Model, bool) {
    let left = Arc::new(AtomicI64::new(left));
    let powered = |below: &Arc<FaultyDevice>| -> Arc<dyn BlockDevice> {
        Arc::new(Powered { below: Arc::clone(below), left: Arc::clone(&left) })
    };
    let mut model = Model { flushed: base.to_vec(), since: vec![] };
    let Ok(array) = Raid6::assemble(devices.iter().map(powered).collect(), true) else { return (model, true) };
    for step in 0..6 {
        let (offset, len) = range(draw, base.len() as u64);
        let data = draw.bytes(len as usize);
        // Also one that fails may have stored some of its blocks.
        model.since.push((offset as usize, data.clone()));
        if array.write(offset, &data).is_err() {
            return (model, true);
        }
        if step % 2 == 1 {
            if array.flush().is_err() {
                return (model, true);
            }
            for (offset, data) in std::mem::take(&mut model.since) {
                model.flushed[offset..offset + data.len()].copy_from_slice(&data);
            }
        }
    }
    let closed = array.close();
    if closed.is_ok() {
        for (offset, data) in std::mem::take(&mut model.since) {
            model.flushed[offset..offset + data.len()].copy_from_slice(&data);
        }
    }
    (model, closed.is_err())
}

fn lose_power_everywhere(gone: &[usize]) {
    let mut draw = Draw::afresh();
    let whole = created(Rotation::LeftSymmetric, 5, 4);
    let array = open(&whole).unwrap();
    let base = draw.bytes(array.geometry().size as usize);
    array.write(0, &base).unwrap();
    array.close().unwrap();
    // So that the missing members are known to be missing.
    let start = without(&whole, gone);
    let array = open(&start).unwrap();
    array.write(0, &base).unwrap();
    array.close().unwrap();
    let seed = draw.next_u64();
    for left in 0.. {
        let devices: Devices =
            start.iter().map(|device| Arc::new(FaultyDevice::new(device.name(), device.content()))).collect();
        let (model, was_lost) = run(&devices, left, &mut Draw::from_seed(seed), &base);
        let about = format!("without {gone:?}, power for {left} requests, seed {} and {seed}", draw.seed());
        // Nothing of what was not flushed survives, all of it, or any part.
        for kind in 0..4 {
            let after: Devices = devices
                .iter()
                .map(|device| {
                    Arc::new(device.after_power_loss(|_| match kind {
                        0 => false,
                        1 => true,
                        _ => draw.below(2) == 0,
                    }))
                })
                .collect();
            let array = open(&after).unwrap_or_else(|error| panic!("{error}; {about}"));
            assert_eq!(array.unsynced(), None, "{about}");
            let found = content(&array);
            model.check(&found, &about);
            if gone.is_empty() {
                let report = array.scrub(false, &mut |_, _| {}, &Cancel::default()).unwrap();
                assert_eq!(report.wrong, 0, "{about}");
            }
            array.close().unwrap();
            // Putting it right was durable, and is done once.
            let again = open(&after).unwrap();
            assert!(content(&again) == found, "{about}");
        }
        if !was_lost {
            assert!(left > 20, "power was lost often enough");
            return;
        }
    }
}

#[test]
fn with_all_members() {
    lose_power_everywhere(&[]);
}

#[test]
fn with_one_member_missing() {
    lose_power_everywhere(&[1]);
}

#[test]
fn with_two_members_missing() {
    lose_power_everywhere(&[0, 3]);
}
