//! What tells whether the kernels are right on a device: random stripes and their oracle.

use super::launch::{generate, recover, scrub};
use super::oracle::{oracle_generate, oracle_scrub};
use super::stripe::{Geometry, Loss, Verdict, check, encode, encode_losses};
use crate::addressing::{self, Addressing};
use crate::known_answer::{self, Draw};
use bifolio_device::{DeviceSlice, Module, Result, Stream};

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    geometry: Geometry,
    /// The whole allocation with all members of all stripes.
    content: Vec<u8>,
    stripes: Vec<Vec<u64>>,
    losses: Vec<Loss>,
    by_address: bool,
    /// What damage is drawn from.
    damage_seed: u64,
}

impl Case {
    /// `stripes` stripes of random content, their chunks in random order; every kind of loss comes up
    /// in turn, with members drawn.
    pub fn draw(draw: &mut Draw, geometry: Geometry, stripes: usize) -> Self {
        let members = geometry.members() as usize;
        let (places, end) = draw.places(&vec![geometry.chunk_bytes; stripes * members]);
        let content = draw.bytes(end as usize);
        let losses = (0..stripes).map(|i| Self::draw_loss(draw, geometry, i)).collect();
        let stripes = places.chunks(members).map(<[u64]>::to_vec).collect();
        Self { geometry, content, stripes, losses, by_address: false, damage_seed: draw.next_u64() }
    }

    fn draw_loss(draw: &mut Draw, geometry: Geometry, kind: usize) -> Loss {
        let a = draw.below(u64::from(geometry.data)) as u32;
        let b = (a + 1 + draw.below(u64::from(geometry.data)) as u32) % geometry.data;
        match kind % 8 {
            0 if a != b => Loss::two(a, b),
            0 | 1 => Loss::one(a),
            2 => Loss::two(a, geometry.p()),
            3 => Loss::two(a, geometry.q()),
            4 => Loss::two(geometry.p(), geometry.q()),
            5 => Loss::one(geometry.p()),
            6 => Loss::one(geometry.q()),
            _ => Loss::NOTHING,
        }
    }

    /// The same with addresses in the table, for devices that have their own.
    #[must_use]
    pub(super) fn by_address(self) -> Self {
        Self { by_address: true, ..self }
    }

    /// Generates P and Q over poison, recovers poisoned members, and scrubs damaged ones; each time the
    /// whole allocation is compared. The error is a sentence about the first wrong byte or word.
    pub fn run(&self, stream: &Stream, module: &Module) -> Result<(), String> {
        let whole = self.generated();
        let parity = Loss::two(self.geometry.p(), self.geometry.q());
        let poisoned = self.poisoned(&whole, |_| parity);
        self.expect("generate", stream, &poisoned, &whole, |base, table| {
            // SAFETY: the allocations live until the content was read back; the chunks are apart.
            unsafe { generate(stream, module, self.geometry, base, table) }
        })?;
        let losses = encode_losses(&self.losses, self.geometry);
        let poisoned = self.poisoned(&whole, |stripe| self.losses[stripe]);
        let losses = known_answer::on_device(stream, &losses).map_err(|error| error.to_string())?;
        self.expect("recover", stream, &poisoned, &whole, |base, table| {
            // SAFETY: as above.
            unsafe { recover(stream, module, self.geometry, base, table, losses.slice()) }
        })?;
        self.scrubs(stream, module, whole)
    }

    /// Damages members of some pieces, one or two, in one byte or all.
    fn scrubs(&self, stream: &Stream, module: &Module, whole: Vec<u8>) -> Result<(), String> {
        let mut draw = Draw::from_seed(self.damage_seed);
        let mut damaged = whole;
        for (i, stripe) in self.stripes.iter().enumerate() {
            for _ in 0..i % 4 {
                let member = draw.below(stripe.len() as u64) as usize;
                let at = draw.below(self.geometry.chunk_bytes);
                let len = if draw.below(2) == 0 { 1 } else { self.geometry.chunk_bytes - at };
                for byte in &mut damaged[(stripe[member] + at) as usize..][..len as usize] {
                    *byte ^= 1 + draw.below(255) as u8;
                }
            }
        }
        let answer: Vec<u32> = (0..self.stripes.len())
            .flat_map(|stripe| oracle_scrub(&self.members(&damaged, stripe)).into_iter().map(Verdict::to_word))
            .collect();
        let verdicts = known_answer::on_device(stream, &known_answer::complement(&answer));
        let verdicts = verdicts.map_err(|error| error.to_string())?;
        self.expect("scrub", stream, &damaged, &damaged, |base, table| {
            // SAFETY: as in `run`.
            unsafe { scrub(stream, module, self.geometry, base, table, verdicts.slice()) }
        })?;
        let found = known_answer::content(stream, &verdicts).map_err(|error| error.to_string())?;
        known_answer::compare("the verdict on piece", &addressing::u32s(&found), &answer)
            .map_err(|wrong| self.sentence("scrub", &wrong))
    }

    fn expect(
        &self,
        what: &str,
        stream: &Stream,
        before: &[u8],
        after: &[u8],
        launch: impl Fn(Addressing<'_>, DeviceSlice<'_>) -> Result<()>,
    ) -> Result<(), String> {
        let found = || -> Result<Vec<u8>> {
            let memory = known_answer::on_device(stream, before)?;
            let start = if self.by_address { memory.ptr().0 } else { 0 };
            let base = if self.by_address { Addressing::Absolute } else { Addressing::Relative(memory.slice()) };
            let stripes: Vec<Vec<u64>> =
                self.stripes.iter().map(|stripe| stripe.iter().map(|place| place + start).collect()).collect();
            check(&stripes, &self.losses, self.geometry, base)?;
            let table = known_answer::on_device(stream, &encode(&stripes))?;
            launch(base, table.slice())?;
            known_answer::content(stream, &memory)
        };
        let found = found().map_err(|error| error.to_string())?;
        known_answer::compare("byte", &found, after).map_err(|wrong| self.sentence(what, &wrong))
    }

    fn sentence(&self, what: &str, wrong: &str) -> String {
        format!("{what}: {} stripes, {:?}: {wrong}", self.stripes.len(), self.geometry)
    }

    fn members<'a>(&self, content: &'a [u8], stripe: usize) -> Vec<&'a [u8]> {
        let len = self.geometry.chunk_bytes as usize;
        self.stripes[stripe].iter().map(|place| &content[*place as usize..][..len]).collect()
    }

    /// The content with right P and Q.
    fn generated(&self) -> Vec<u8> {
        let mut content = self.content.clone();
        for (i, stripe) in self.stripes.iter().enumerate() {
            let data = self.geometry.data as usize;
            let parity = oracle_generate(&self.members(&self.content, i)[..data]);
            for (place, bytes) in stripe[data..].iter().zip(parity) {
                content[*place as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        content
    }

    /// The complement of the answer where something is lost.
    fn poisoned(&self, whole: &[u8], loss: impl Fn(usize) -> Loss) -> Vec<u8> {
        let mut content = whole.to_vec();
        for (i, stripe) in self.stripes.iter().enumerate() {
            for member in loss(i).members() {
                let at = stripe[member as usize] as usize;
                content[at..at + self.geometry.chunk_bytes as usize].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        content
    }
}
