//! The direct table's arrays for a device, and what changed in them since a device got them.
//!
//! ```text
//!   level 1   2 bytes for each 24 bits: a code, or with the highest bit a list's number
//!   level 2   lists of 256 codes
//!   hops      8 bytes by code: the gateway as in headers, the output's number; code 0 is the default route's
//! ```
//!
//! All is little-endian. Writes of an update are in an order in which lookups between them find, for each address, what it
//! had before or what it has after the update: next hops and lists stand before codes that lead to them.

use super::compiled::Compiled;
use super::direct::{BLOCKS, Direct, DirectSpace};
use super::hops::{Book, Hops};

/// Numbers of outputs are below this.
const OUTPUTS: i32 = 255;

/// Which array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// Next hops, [`DirectImage::HOPS_BYTES`].
    Hops,
    /// Lists of codes, [`DirectImage::LEVEL2_BYTES`].
    Level2,
    /// Codes by the upper 24 bits of an address, [`DirectImage::LEVEL1_BYTES`].
    Level1,
}

/// Bytes to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub buffer: Buffer,
    /// How far into it, in bytes.
    pub at: usize,
    /// What.
    pub bytes: Vec<u8>,
}

/// All arrays, as far as they are in use.
#[derive(Debug, Clone)]
pub struct DirectImage {
    /// Always [`LEVEL1_BYTES`](Self::LEVEL1_BYTES).
    pub level1: Vec<u8>,
    /// Lists that there are.
    pub level2: Vec<u8>,
    /// Next hops that there are.
    pub hops: Vec<u8>,
}

impl DirectImage {
    /// Bytes of the first level.
    pub const LEVEL1_BYTES: usize = 2 << 24;
    /// Bytes that the second level can grow to.
    pub const LEVEL2_BYTES: usize = BLOCKS * 512;
    /// Bytes that next hops can grow to.
    pub const HOPS_BYTES: usize = BLOCKS * 8;
}

/// What a device has of a table.
#[derive(Debug, Clone)]
pub struct DirectMirror {
    /// The number of the publication.
    then: u64,
    /// Nothing: some of an update was written that is not over.
    hops: Vec<[u8; 8]>,
    /// Which prefix each list belonged to.
    owners: Vec<Option<u32>>,
}

impl DirectMirror {
    /// An update could not be written as a whole: the device has this table, and perhaps parts of a later one, which the
    /// next update makes up for.
    pub fn tear(&mut self) {
        // What a later update leaves as it was may have been written by this one. Lists and codes are known by when they
        // changed.
        self.hops.clear();
    }
}

/// What makes a device's table the current one.
#[derive(Debug, Clone, Default)]
pub struct DirectUpdate {
    /// Memory that lookups may still look at gets another meaning: the writes must not run beside a batch, be it that they
    /// go the same way as batches (a stream), or that who writes waits for those that began before, and holds others back.
    /// Otherwise batches may run beside the writes, if these are done in order.
    pub is_exclusive: bool,
    /// In the order in which they are to be done.
    pub writes: Vec<Write>,
}

impl DirectUpdate {
    /// Bytes of all writes.
    pub fn bytes(&self) -> usize {
        self.writes.iter().map(|write| write.bytes.len()).sum()
    }

    fn push(&mut self, buffer: Buffer, at: usize, bytes: &[u8]) {
        match self.writes.last_mut().filter(|last| last.buffer == buffer && last.at + last.bytes.len() == at) {
            Some(last) => last.bytes.extend(bytes),
            None => self.writes.push(Write { buffer, at, bytes: bytes.to_vec() }),
        }
    }
}

fn bytes(codes: impl Iterator<Item = u16>) -> Vec<u8> {
    codes.flat_map(u16::to_le_bytes).collect()
}

/// Next hops as devices have them.
fn hops(layout: &Direct, hops: &Hops, book: &Book) -> Result<Vec<[u8; 8]>, String> {
    if let Some(hop) = book.pairs().find(|hop| hop.output >= OUTPUTS) {
        return Err(format!("a device cannot tell output {}, only those up to {}", hop.output, OUTPUTS - 1));
    }
    let code = |code: u32| if code == 0 { layout.default_code() } else { code };
    let entry = |number: u32| {
        let hop = hops.get(code(number));
        let (gateway, output) = (hop.gateway.to_be_bytes(), hop.output.to_le_bytes());
        std::array::from_fn(|at| if at < 4 { gateway[at] } else { output[at - 4] })
    };
    Ok((0..book.codes()).map(entry).collect())
}

fn owners(space: &DirectSpace) -> Vec<Option<u32>> {
    let mut owners = vec![None; space.made()];
    space.held().for_each(|(prefix, list)| owners[usize::from(list)] = Some(prefix));
    owners
}

/// All arrays.
pub(super) fn whole(table: &Compiled<Direct>) -> Result<(DirectMirror, DirectImage), String> {
    table.at_rest(|layout, space, pairs, book| {
        let hops = hops(layout, pairs, book)?;
        let mirror = DirectMirror { then: space.noted(), hops, owners: owners(space) };
        let level1 = (0..1 << 16).flat_map(|prefix| bytes(layout.first_of(prefix))).collect();
        let level2 = (0..space.made()).flat_map(|list| bytes(layout.block(list))).collect();
        let hops = mirror.hops.concat();
        Ok((mirror, DirectImage { level1, level2, hops }))
    })
}

/// What changed.
pub(super) fn update(table: &Compiled<Direct>, mirror: &DirectMirror) -> Result<(DirectMirror, DirectUpdate), String> {
    table.at_rest(|layout, space, pairs, book| {
        let (hops, owners) = (hops(layout, pairs, book)?, owners(space));
        // Parts of an update that is not over may lead to what has another meaning by now.
        let mut update = DirectUpdate { is_exclusive: mirror.hops.is_empty(), writes: Vec::new() };
        let then = mirror.then;
        for (code, hop) in hops.iter().enumerate().filter(|&(code, hop)| mirror.hops.get(code) != Some(hop)) {
            update.is_exclusive |= code > 0 && code < mirror.hops.len();
            update.push(Buffer::Hops, code * 8, hop);
        }
        for list in space.blocks_since(then).filter(|&list| owners[list].is_some()) {
            update.is_exclusive |= mirror.owners.get(list).is_some_and(|owner| *owner != owners[list]);
            update.push(Buffer::Level2, list * 512, &bytes(layout.block(list)));
        }
        for prefix in space.middles_since(then) {
            update.push(Buffer::Level1, prefix * 512, &bytes(layout.first_of(prefix)));
        }
        // With the default route alone, an address has either the old or the new one.
        update.is_exclusive |=
            hops.first() != mirror.hops.first() && update.writes.iter().any(|write| write.buffer != Buffer::Hops);
        Ok((DirectMirror { then: space.noted(), hops, owners }, update))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{DirectTable, Edit, Refusal, Route, Table};
    use super::*;
    use bifolio_kernels::packets::ip_lookup::find;
    use fastrand::Rng;

    /// What a device has.
    struct Device([Vec<u8>; 3]);

    impl Device {
        fn new(image: DirectImage) -> Self {
            let grown = |mut bytes: Vec<u8>, len| {
                // What nobody wrote is noise on a device.
                bytes.resize(len, 0x5a);
                bytes
            };
            Self([
                image.level1,
                grown(image.level2, DirectImage::LEVEL2_BYTES),
                grown(image.hops, DirectImage::HOPS_BYTES),
            ])
        }

        fn write(&mut self, write: &Write) {
            let buffer = match write.buffer {
                Buffer::Level1 => 0,
                Buffer::Level2 => 1,
                Buffer::Hops => 2,
            };
            self.0[buffer][write.at..][..write.bytes.len()].copy_from_slice(&write.bytes);
        }

        fn look(&self, address: u32) -> Option<([u8; 4], u32)> {
            find(self.0.each_ref().map(Vec::as_slice), address)
        }
    }

    fn expected(table: &DirectTable, address: u32) -> Option<([u8; 4], u32)> {
        let hop = table.lookup(address);
        u32::try_from(hop.output).ok().map(|output| (hop.gateway.to_be_bytes(), output))
    }

    fn address(rng: &mut Rng) -> u32 {
        [0, 0x0a00_0000, 0x0a01_0200][rng.usize(..3)] | rng.u32(..) & [0xffff_ffff, 0x1_ffff, 0x3ff][rng.usize(..3)]
    }

    fn change(rng: &mut Rng, edit: &mut dyn Edit) {
        let len = [0, 8, 15, 16, 20, 24, 25, 28, 32, 32][rng.usize(..10)];
        let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
        let gateway = rng.u32(..60) & rng.u32(..60);
        let route =
            Route { address: address(rng) & mask, mask, gateway, output: rng.i32(-1..255) & 7 | gateway as i32 };
        if rng.u8(..3) == 0 {
            let _ = edit.remove(&Route { output: -1, gateway: 0, ..route });
        } else {
            edit.insert(route, true).unwrap();
        }
    }

    fn bring(table: &DirectTable, mirror: &mut DirectMirror) -> DirectUpdate {
        let (after, update) = table.update(mirror).unwrap();
        *mirror = after;
        update
    }

    /// Between any two writes of an update, each address has what it had, or what it will have.
    #[test]
    fn a_device_that_gets_updates_has_the_table() {
        let mut rng = Rng::with_seed(bifolio_testing::seed());
        let table = DirectTable::default();
        (0..500).for_each(|_| change(&mut rng, &mut *table.edit()));
        let (mut mirror, image) = table.image().unwrap();
        let mut device = Device::new(image);
        for round in 0..60 {
            if round == 40 {
                table.edit().clear();
            }
            for _ in 0..rng.usize(..40) {
                let mut edit = table.edit();
                (0..rng.usize(1..4)).for_each(|_| change(&mut rng, &mut *edit));
            }
            let update = bring(&table, &mut mirror);
            let addresses: Vec<_> = (0..500).map(|_| address(&mut rng)).collect();
            let before: Vec<_> = addresses.iter().map(|&address| device.look(address)).collect();
            for write in &update.writes {
                device.write(write);
                for (&address, before) in addresses.iter().zip(&before).filter(|_| !update.is_exclusive) {
                    let (found, after) = (device.look(address), expected(&table, address));
                    assert!(found == *before || found == after, "{address:#x}: {found:?}, not {before:?} or {after:?}");
                }
            }
            for address in addresses {
                assert_eq!(device.look(address), expected(&table, address), "{address:#x} in round {round}");
            }
            assert!(bring(&table, &mut mirror).writes.is_empty());
        }
        let (_, image) = table.image().unwrap();
        assert!(device.0[0] == image.level1 && device.0[2].starts_with(&image.hops));
    }

    /// What a device got of an update that failed was taken for all of it, and addresses kept routes that were gone.
    #[test]
    fn an_update_that_was_written_in_part_is_made_up_for() {
        let mut rng = Rng::with_seed(bifolio_testing::seed());
        let table = DirectTable::default();
        (0..300).for_each(|_| change(&mut rng, &mut *table.edit()));
        let (mut mirror, image) = table.image().unwrap();
        let mut device = Device::new(image);
        let mut torn = 0;
        for round in 0..60 {
            (0..rng.usize(..30)).for_each(|_| change(&mut rng, &mut *table.edit()));
            let was_torn = mirror.hops.is_empty();
            let (after, update) = table.update(&mirror).unwrap();
            assert!(update.is_exclusive || !was_torn);
            let fails = rng.bool() && !update.writes.is_empty();
            let many = if fails { rng.usize(..update.writes.len()) } else { update.writes.len() };
            update.writes[..many].iter().for_each(|write| device.write(write));
            if fails {
                mirror.tear();
                torn += 1;
                continue;
            }
            mirror = after;
            for _ in 0..300 {
                let address = address(&mut rng);
                assert_eq!(device.look(address), expected(&table, address), "{address:#x} in round {round}");
            }
        }
        assert!(torn > 5, "{torn} updates failed");
    }

    #[test]
    fn one_route_is_a_small_update() {
        let table = DirectTable::default();
        let (mut mirror, image) = table.image().unwrap();
        assert_eq!((image.level1.len(), image.level2.len(), image.hops.len()), (DirectImage::LEVEL1_BYTES, 0, 8));
        let route = |address, len: u32, output| Route {
            address,
            mask: u32::MAX.checked_shl(32 - len).unwrap_or(0),
            gateway: 7,
            output,
        };
        for (len, most) in [(32, 1032), (24, 520), (16, 520), (8, (128 << 10) + 8), (0, 16)] {
            table
                .edit()
                .insert(route(0x0a00_0000 & if len == 0 { 0 } else { u32::MAX }, len, len as i32), false)
                .unwrap();
            let update = bring(&table, &mut mirror);
            assert!((1..=most).contains(&update.bytes()), "{len}: {} bytes", update.bytes());
            assert!(!update.is_exclusive, "{len}");
        }
    }

    /// A next hop's code, and a list's number, used again: those who have the old ones would be led astray.
    #[test]
    fn memory_that_gets_another_meaning_is_told() {
        let table = DirectTable::default();
        let (mut mirror, image) = table.image().unwrap();
        let mut device = Device::new(image);
        let route = |number: u32, gateway| Route { address: number << 8, mask: u32::MAX, gateway, output: 1 };
        let (mut exclusive, mut shared, mut full) = (0, 0, false);
        for number in 0..40_000 {
            let inserted = table.edit().insert(route(number, 1 + number % 5), false);
            match inserted {
                Err(refusal) => full = refusal == Refusal::Full,
                Ok(_) if number > 30_000 => _ = table.edit().remove(&route(number - 30_000, 1 + (number - 30_000) % 5)),
                Ok(_) => {}
            }
            if number % 1000 == 999 || number > 32_700 && number % 100 == 0 {
                let update = bring(&table, &mut mirror);
                exclusive += usize::from(update.is_exclusive);
                shared += usize::from(!update.is_exclusive);
                update.writes.iter().for_each(|write| device.write(write));
            }
        }
        assert!(exclusive > 20 && shared > 20 && !full, "{exclusive}, {shared}");
        let mut rng = Rng::with_seed(bifolio_testing::seed());
        for _ in 0..5000 {
            let address = rng.u32(..40_000) << 8;
            assert_eq!(device.look(address), expected(&table, address));
        }
        table.edit().insert(Route { output: 255, ..route(50_000, 3) }, false).unwrap();
        assert!(table.update(&mirror).unwrap_err().contains("cannot tell output 255"));
        table.edit().remove(&route(50_000, 3)).unwrap_err();
        table.edit().remove(&Route { output: 255, ..route(50_000, 3) }).unwrap();
        assert!(table.update(&mirror).is_ok());
    }
}
