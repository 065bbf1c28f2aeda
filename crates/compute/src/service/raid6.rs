//! RAID-6: P and Q, recovery and scrub of stripes whose chunks lie one after the other.
//!
//! RAID-6 is computed byte by byte, so that a stripe here may be any part of an array's stripe: large chunks
//! are best given in parts of 64 KiB or so, which can be cut between them.

use super::List;
use super::{Batch, Data, Entry, Launch, Output, Prepared, Service, Shape, offset_in};
use crate::cpu::pq;
use crate::kernels::{Kernels, Loaded};
use crate::{Error, ErrorKind, Result};
use bifolio_device::{Device, DeviceSlice};
use bifolio_kernels::Addressing;
use bifolio_kernels::raid6::{self, Geometry, LOSS_BYTES, Loss, Verdict};
use std::sync::Arc;

/// P and Q, one after the other for each stripe, from its data chunks: the requests say how many stripes by
/// their length.
#[derive(Debug)]
pub struct Generate {
    geometry: Geometry,
    device: Result<Loaded, String>,
}

/// What stripes have lost, in the order of their losses, from all members; what lies in the places of lost
/// members is not read.
#[derive(Debug)]
pub struct Recover {
    geometry: Geometry,
    device: Result<Loaded, String>,
}

/// What is wrong with stripes of all members: a verdict for every 4 KiB of a chunk, see [`Verdicts`].
#[derive(Debug)]
pub struct Scrub {
    geometry: Geometry,
    device: Result<Loaded, String>,
}

/// What each stripe of a request has lost.
pub type Stripes = List<Loss>;

/// How results of a [`Scrub`] are read.
#[derive(Debug)]
pub struct Verdicts;

impl Verdicts {
    /// One for each piece of each stripe.
    pub fn of(results: &[u8]) -> Vec<Verdict> {
        raid6::decode_verdicts(results)
    }
}

impl Generate {
    /// For stripes of a geometry.
    ///
    /// # Errors
    /// `BadArgument` for a geometry that is none, and the device's.
    pub fn new(kernels: &Kernels, geometry: Geometry) -> Result<Arc<Self>> {
        let device = load(kernels, geometry)?;
        Ok(Arc::new(Self { geometry, device }))
    }
}

impl Recover {
    /// For stripes of a geometry.
    ///
    /// # Errors
    /// `BadArgument` for a geometry that is none, and the device's.
    pub fn new(kernels: &Kernels, geometry: Geometry) -> Result<Arc<Self>> {
        let device = load(kernels, geometry)?;
        Ok(Arc::new(Self { geometry, device }))
    }
}

impl Scrub {
    /// For stripes of a geometry.
    ///
    /// # Errors
    /// `BadArgument` for a geometry that is none, and the device's.
    pub fn new(kernels: &Kernels, geometry: Geometry) -> Result<Arc<Self>> {
        let device = load(kernels, geometry)?;
        Ok(Arc::new(Self { geometry, device }))
    }
}

fn load(kernels: &Kernels, geometry: Geometry) -> Result<Result<Loaded, String>> {
    let Geometry { data, chunk_bytes } = geometry;
    if !(1..=raid6::DATA_MAX).contains(&data) {
        return Err(Error::bad(format!("RAID-6 has 1 to {} data members, not {data}", raid6::DATA_MAX)));
    }
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(16) || chunk_bytes > u64::from(u32::MAX) {
        return Err(Error::bad(format!(
            "the length of a chunk is a multiple of 16 bytes below 4 GiB, not {chunk_bytes}"
        )));
    }
    kernels.load(&raid6::Raid6)
}

/// Small chunks take longer by far, and are measured by themselves.
fn named(geometry: Geometry, [usual, small]: [&'static str; 2]) -> &'static str {
    if geometry.chunk_bytes < 4096 { small } else { usual }
}

/// Bytes of a stripe of which `members` travel.
fn stripe_bytes(geometry: Geometry, members: u32) -> u64 {
    u64::from(members) * geometry.chunk_bytes
}

fn stripes(geometry: Geometry, members: u32, input: u64) -> Result<u64> {
    let stripe = stripe_bytes(geometry, members);
    if input.is_multiple_of(stripe) {
        return Ok(input / stripe);
    }
    let chunk = geometry.chunk_bytes;
    Err(Error::bad(format!("{input} bytes are not a whole number of stripes of {members} chunks of {chunk} bytes")))
}

fn whole_stripes(geometry: Geometry, members: u32, bytes: u64) -> u64 {
    bytes / stripe_bytes(geometry, members) * stripe_bytes(geometry, members)
}

fn sample(geometry: Geometry, members: u32, about: u64) -> Vec<u8> {
    vec![0x5a; about.next_multiple_of(stripe_bytes(geometry, members)) as usize]
}

fn chunks(stripe: &[u8], geometry: Geometry) -> Vec<&[u8]> {
    stripe.chunks_exact(geometry.chunk_bytes as usize).collect()
}

/// Where kernels count places from: the batch's memory if input and output lie in one, else addresses.
fn base<'a>(device: &Device, batch: Batch<'a>, writes: bool) -> Result<(Addressing<'a>, u64)> {
    if !writes || batch.inputs.ptr() == batch.outputs.ptr() {
        return Ok((Addressing::Relative(batch.inputs), batch.inputs.ptr().0));
    }
    match device.capabilities().virtual_memory.reason() {
        None => Ok((Addressing::Absolute, 0)),
        Some(missing) => {
            Err(Error::new(ErrorKind::Unsuited, format!("kernels cannot address two allocations: {missing}")))
        }
    }
}

fn encode(places: impl Iterator<Item = u64>) -> Vec<u8> {
    places.flat_map(u64::to_ne_bytes).collect()
}

fn chunk_places(geometry: Geometry, input: DeviceSlice<'_>, origin: u64) -> impl Iterator<Item = u64> {
    let start = input.ptr().0 - origin;
    (0..input.len() / geometry.chunk_bytes).map(move |chunk| start + chunk * geometry.chunk_bytes)
}

impl Service for Generate {
    type Params = ();

    fn name(&self) -> &'static str {
        named(self.geometry, ["raid6-generate", "raid6-generate of small chunks"])
    }

    fn shape(&self, (): &(), input: u64) -> Result<Shape> {
        let stripes = stripes(self.geometry, self.geometry.data, input)?;
        Ok(Shape { output: Output::Apart(stripes * 2 * self.geometry.chunk_bytes), results: 0 })
    }

    fn cut(&self, (): &(), at_most: u64) -> u64 {
        whole_stripes(self.geometry, self.geometry.data, at_most)
    }

    fn split(&self, (): &(), _at: u64) -> ((), ()) {
        ((), ())
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    fn sample(&self, about_bytes: u64) -> ((), Vec<u8>) {
        ((), sample(self.geometry, self.geometry.data, about_bytes))
    }

    fn on_cpu(&self, (): &(), data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        let Data::Apart(input, output) = data else { return Err(Error::bad("P and Q need a destination")) };
        let stripe = stripe_bytes(self.geometry, self.geometry.data) as usize;
        let chunk = self.geometry.chunk_bytes as usize;
        for (data, parity) in input.chunks_exact(stripe).zip(output.chunks_exact_mut(2 * chunk)) {
            let (p, q) = parity.split_at_mut(chunk);
            pq::generate(&chunks(data, self.geometry), p, q);
        }
        Ok(())
    }

    fn prepare(&self, device: &Device, entries: &[Entry<'_, ()>], batch: Batch<'_>) -> Result<Prepared> {
        let (_, origin) = base(device, batch, true)?;
        let geometry = self.geometry;
        let mut places = vec![];
        for entry in entries {
            let data: Vec<u64> = chunk_places(geometry, entry.input, origin).collect();
            let parity: Vec<u64> = chunk_places(geometry, entry.output, origin).collect();
            for (data, parity) in data.chunks_exact(geometry.data as usize).zip(parity.chunks_exact(2)) {
                places.extend(data.iter().chain(parity));
            }
        }
        Ok(Prepared { table: encode(places.into_iter()), scratch_bytes: 0 })
    }

    unsafe fn launch(&self, _entries: &[Entry<'_, ()>], launch: &Launch<'_>) -> Result<()> {
        let Ok(loaded) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let (base, _) = base(launch.stream.device(), launch.batch, true)?;
        // SAFETY: the caller's promise; the table is this batch's.
        unsafe { raid6::generate(launch.stream, loaded.module(), self.geometry, base, launch.table) }?;
        Ok(())
    }
}

impl Service for Recover {
    type Params = Stripes;

    fn name(&self) -> &'static str {
        named(self.geometry, ["raid6-recover", "raid6-recover of small chunks"])
    }

    fn shape(&self, losses: &Stripes, input: u64) -> Result<Shape> {
        let members = self.geometry.members();
        let stripes = stripes(self.geometry, members, input)?;
        if stripes != losses.items().len() as u64 {
            return Err(Error::bad(format!("{} losses for {stripes} stripes", losses.items().len())));
        }
        let lost: Vec<u32> = losses.items().iter().flat_map(|loss| loss.members()).collect();
        if let Some(member) = lost.iter().find(|member| **member >= members) {
            return Err(Error::bad(format!("there is no member {member} in a stripe of {members}")));
        }
        Ok(Shape { output: Output::Apart(lost.len() as u64 * self.geometry.chunk_bytes), results: 0 })
    }

    fn cut(&self, _losses: &Stripes, at_most: u64) -> u64 {
        whole_stripes(self.geometry, self.geometry.members(), at_most)
    }

    fn split(&self, losses: &Stripes, at: u64) -> (Stripes, Stripes) {
        losses.split((at / stripe_bytes(self.geometry, self.geometry.members())) as usize, at)
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    fn sample(&self, about_bytes: u64) -> (Stripes, Vec<u8>) {
        let bytes = sample(self.geometry, self.geometry.members(), about_bytes);
        let stripes = bytes.len() as u64 / stripe_bytes(self.geometry, self.geometry.members());
        let loss = if self.geometry.data > 1 { Loss::two(0, 1) } else { Loss::one(0) };
        ((0..stripes).map(|_| loss).collect(), bytes)
    }

    fn on_cpu(&self, losses: &Stripes, data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        let (input, output) = match data {
            Data::Apart(input, output) => (input, output),
            Data::Read(input) => (input, &mut [][..]),
            Data::InPlace(_) => return Err(Error::bad("a recovery needs a destination")),
        };
        let stripe = stripe_bytes(self.geometry, self.geometry.members()) as usize;
        let mut places = output.chunks_exact_mut(self.geometry.chunk_bytes as usize);
        for (members, loss) in input.chunks_exact(stripe).zip(losses.items()) {
            let count = loss.members().count();
            let mut lost: Vec<&mut [u8]> = places.by_ref().take(count).collect();
            pq::recover_apart(&chunks(members, self.geometry), *loss, &mut lost);
        }
        Ok(())
    }

    fn prepare(&self, device: &Device, entries: &[Entry<'_, Stripes>], batch: Batch<'_>) -> Result<Prepared> {
        let (_, origin) = base(device, batch, true)?;
        let geometry = self.geometry;
        let (mut places, mut losses): (Vec<u64>, Vec<Loss>) = (vec![], vec![]);
        for entry in entries {
            let mut members: Vec<u64> = chunk_places(geometry, entry.input, origin).collect();
            let mut found = chunk_places(geometry, entry.output, origin);
            for (stripe, loss) in members.chunks_exact_mut(geometry.members() as usize).zip(entry.params.items()) {
                for (lost, place) in loss.members().zip(&mut found) {
                    stripe[lost as usize] = place;
                }
            }
            places.extend(members);
            losses.extend(entry.params.items());
        }
        let mut table = encode(places.into_iter());
        table.resize(table.len().next_multiple_of(256), 0);
        table.extend(raid6::encode_losses(&losses, geometry));
        Ok(Prepared { table, scratch_bytes: 0 })
    }

    unsafe fn launch(&self, entries: &[Entry<'_, Stripes>], launch: &Launch<'_>) -> Result<()> {
        let Ok(loaded) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let (base, _) = base(launch.stream.device(), launch.batch, true)?;
        let stripes: u64 = entries.iter().map(|entry| entry.params.items().len() as u64).sum();
        let table = launch.table.part(0, stripes * u64::from(self.geometry.members()) * 8)?;
        let losses = launch.table.part(table.len().next_multiple_of(256), stripes * LOSS_BYTES)?;
        // SAFETY: the caller's promise; the tables are this batch's.
        unsafe { raid6::recover(launch.stream, loaded.module(), self.geometry, base, table, losses) }?;
        Ok(())
    }
}

impl Service for Scrub {
    type Params = ();

    fn name(&self) -> &'static str {
        named(self.geometry, ["raid6-scrub", "raid6-scrub of small chunks"])
    }

    fn shape(&self, (): &(), input: u64) -> Result<Shape> {
        let stripes = stripes(self.geometry, self.geometry.members(), input)?;
        Ok(Shape { output: Output::Nothing, results: stripes * self.geometry.pieces() * 4 })
    }

    fn cut(&self, (): &(), at_most: u64) -> u64 {
        whole_stripes(self.geometry, self.geometry.members(), at_most)
    }

    fn split(&self, (): &(), _at: u64) -> ((), ()) {
        ((), ())
    }

    fn refusal(&self) -> Option<String> {
        self.device.as_ref().err().cloned()
    }

    /// Stripes without damage: a scrub seldom finds any, and what it finds takes far longer.
    fn sample(&self, about_bytes: u64) -> ((), Vec<u8>) {
        let (data, chunk) = (self.geometry.data as usize, self.geometry.chunk_bytes as usize);
        let mut members = sample(self.geometry, self.geometry.members(), about_bytes);
        for stripe in members.chunks_exact_mut((data + 2) * chunk) {
            let (data, parity) = stripe.split_at_mut(data * chunk);
            let (p, q) = parity.split_at_mut(chunk);
            pq::generate(&chunks(data, self.geometry), p, q);
        }
        ((), members)
    }

    fn on_cpu(&self, (): &(), data: Data<'_>, results: &mut [u8]) -> Result<()> {
        let stripe = stripe_bytes(self.geometry, self.geometry.members()) as usize;
        let words = results.chunks_exact_mut(self.geometry.pieces() as usize * 4);
        for (members, words) in data.input().chunks_exact(stripe).zip(words) {
            let verdicts = pq::scrub(&chunks(members, self.geometry));
            for (verdict, word) in verdicts.iter().zip(words.chunks_exact_mut(4)) {
                word.copy_from_slice(&verdict.to_word().to_ne_bytes());
            }
        }
        Ok(())
    }

    fn prepare(&self, _device: &Device, entries: &[Entry<'_, ()>], batch: Batch<'_>) -> Result<Prepared> {
        let places = entries.iter().flat_map(|entry| {
            let start = offset_in(batch.inputs, entry.input);
            (0..entry.input.len() / self.geometry.chunk_bytes)
                .map(move |chunk| start + chunk * self.geometry.chunk_bytes)
        });
        Ok(Prepared { table: encode(places), scratch_bytes: 0 })
    }

    unsafe fn launch(&self, _entries: &[Entry<'_, ()>], launch: &Launch<'_>) -> Result<()> {
        let Ok(loaded) = &self.device else { return Err(Error::bad("the kernels are not loaded")) };
        let (stream, base) = (launch.stream, Addressing::Relative(launch.batch.inputs));
        // SAFETY: the caller's promise; the table is this batch's, and the members are only read.
        unsafe { raid6::scrub(stream, loaded.module(), self.geometry, base, launch.table, launch.results) }?;
        Ok(())
    }
}
