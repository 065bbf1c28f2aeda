//! RAID-6 over stripes in device memory: P and Q, the recovery of one or two lost members, and a
//! scrub that names the member that is wrong.
//!
//! P is the sum of a stripe's data chunks and Q the sum of 2^i times chunk i, in GF(2^8) modulo
//! x^8 + x^4 + x^3 + x^2 + 1: what Linux md and the literature call RAID-6 (H. P. Anvin, "The
//! mathematics of RAID-6"). Every chunk has a place of its own, see [`encode`], so that members may be
//! separate buffers and parity may rotate: members are numbered by their role in a stripe, data
//! first, then P, then Q.
//!
//! One group of threads takes a piece of 4 KiB of all members of a stripe.

pub mod field;

use crate::known_answer::{self, Draw};
use crate::page_list::Base;
use crate::{Error, ErrorKind, KDEF_H, Result};
use bifolio_device::{DevicePtr, DeviceSlice, HostLaunch, KernelArg, Module, ModuleSource, Stream};
use std::slice;

/// Name of the kernel that computes P and Q.
pub const GENERATE: &str = "raid6_generate";
/// Name of the kernel that recovers lost members.
pub const RECOVER: &str = "raid6_recover";
/// Name of the kernel that looks for wrong members.
pub const SCRUB: &str = "raid6_scrub";

/// The kernels' source.
pub const MODULE: ModuleSource = ModuleSource {
    name: "raid6",
    source: include_str!("cl/raid6.cl"),
    headers: &[KDEF_H, ("raid6.h", include_str!("cl/raid6.h"))],
    kernels: &[(GENERATE, generate_on_host), (RECOVER, recover_on_host), (SCRUB, scrub_on_host)],
};

const GROUP_SIZE: u32 = 256;

/// What a group takes of each member, and what a scrub gives a verdict on.
pub const PIECE_BYTES: u64 = 4096;

/// Most data members: beyond, powers of 2 repeat.
pub const DATA_MAX: u32 = 255;

/// No member, as the device has it.
const NONE: u32 = u32::MAX;

/// No single member explains what is wrong, as the device has it.
const UNKNOWN: u32 = u32::MAX - 1;

/// The shape of the stripes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Data members, 1 to [`DATA_MAX`].
    pub data: u32,
    /// Bytes of one member in a stripe; a multiple of 16.
    pub chunk_bytes: u64,
}

impl Geometry {
    /// The member that is P.
    pub fn p(self) -> u32 {
        self.data
    }

    /// The member that is Q.
    pub fn q(self) -> u32 {
        self.data + 1
    }

    /// Members of a stripe, P and Q included.
    pub fn members(self) -> u32 {
        self.data + 2
    }

    /// Pieces in a chunk: verdicts of a scrub on one stripe.
    pub fn pieces(self) -> u64 {
        self.chunk_bytes.div_ceil(PIECE_BYTES)
    }
}

/// What a stripe has lost: at most two members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    first: u32,
    second: u32,
}

/// Size of a [`Loss`] in the device's array.
pub const LOSS_BYTES: u64 = 16;

impl Loss {
    /// Nothing is lost: the stripe is left alone.
    pub const NOTHING: Self = Self { first: NONE, second: NONE };

    /// One member.
    pub fn one(member: u32) -> Self {
        Self { first: member, second: NONE }
    }

    /// Two different members.
    ///
    /// # Panics
    /// If they are the same.
    pub fn two(one: u32, other: u32) -> Self {
        assert_ne!(one, other, "two lost members differ");
        Self { first: one.min(other), second: one.max(other) }
    }

    /// The lost members.
    pub fn members(self) -> impl Iterator<Item = u32> {
        [self.first, self.second].into_iter().filter(|member| *member != NONE)
    }

    /// The factors of both syndromes, as the kernel wants them.
    fn factors(self, geometry: Geometry) -> [u8; 2] {
        let (p, q) = (geometry.p(), geometry.q());
        match (self.first, self.second) {
            (a, b) if a < p && b < p => {
                let apart = field::power(b - a);
                let of_p = field::divide(apart, apart ^ 1);
                [of_p, field::divide(1, field::times(field::power(a), apart ^ 1))]
            }
            (a, b) if a < p && b == p => [0, field::divide(1, field::power(a))],
            (a, b) if a < p && b == q => [0, field::power(a)],
            _ => [0, 0],
        }
    }

    fn fits(self, geometry: Geometry) -> bool {
        self.members().all(|member| member < geometry.members())
    }
}

/// The array of losses, one for each stripe, as the device reads it.
pub fn encode_losses(losses: &[Loss], geometry: Geometry) -> Vec<u8> {
    let words = |loss: &Loss| {
        let [of_p, of_q] = loss.factors(geometry).map(u32::from);
        [loss.first, loss.second, of_p, of_q].map(u32::to_ne_bytes).concat()
    };
    losses.iter().flat_map(words).collect()
}

/// The table of places as the device reads it: for each stripe those of the data members, of P and
/// of Q. Places are multiples of 16.
pub fn encode(stripes: &[Vec<u64>]) -> Vec<u8> {
    stripes.iter().flatten().flat_map(|place| place.to_ne_bytes()).collect()
}

/// What a scrub says of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// P and Q fit the data.
    Clean,
    /// This member alone is wrong, or the damage looks as if it were.
    Member(u32),
    /// More than one member is wrong.
    Unknown,
}

impl Verdict {
    fn of_word(word: u32) -> Self {
        match word {
            NONE => Self::Clean,
            UNKNOWN => Self::Unknown,
            member => Self::Member(member),
        }
    }

    /// How a scrub writes it.
    pub fn to_word(self) -> u32 {
        match self {
            Self::Clean => NONE,
            Self::Unknown => UNKNOWN,
            Self::Member(member) => member,
        }
    }
}

/// The verdicts that a scrub wrote, [`Geometry::pieces`] for each stripe.
pub fn decode_verdicts(bytes: &[u8]) -> Vec<Verdict> {
    known_answer::u32s(bytes).into_iter().map(Verdict::of_word).collect()
}

/// Refuses places that do not lie at 16-byte boundaries inside the base, and losses that name
/// members that are not there. The kernels cannot, as both are on the device.
pub fn check(stripes: &[Vec<u64>], losses: &[Loss], geometry: Geometry, base: Base<'_>) -> Result<()> {
    if let Some(stripe) = stripes.iter().find(|stripe| stripe.len() != geometry.members() as usize) {
        return Err(bad(format!("a stripe has {} members instead of {}", stripe.len(), geometry.members())));
    }
    if let Some(loss) = losses.iter().find(|loss| !loss.fits(geometry)) {
        return Err(bad(format!("{loss:?} names a member beyond the {} of a stripe", geometry.members())));
    }
    stripes.iter().flatten().try_for_each(|place| base.check("member's", *place, geometry.chunk_bytes))
}

/// Enqueues writing P and Q of the stripes in `table`, see [`encode`], at an 8-byte boundary.
///
/// # Safety
/// `module` is [`MODULE`] on the stream's device; the memory is of that device, stays valid and is
/// not used by others until the work completes; the table passes [`check`], and no two chunks that
/// it names overlap.
pub unsafe fn generate(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Base<'_>,
    table: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, GENERATE, geometry, base, table, None) }
}

/// Enqueues writing what the stripes of `table` have lost; `losses`, see [`encode_losses`], has an
/// entry for each at a 4-byte boundary.
///
/// # Safety
/// As for [`generate`]; the losses pass [`check`].
pub unsafe fn recover(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Base<'_>,
    table: DeviceSlice<'_>,
    losses: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, RECOVER, geometry, base, table, Some((losses, LOSS_BYTES))) }
}

/// Enqueues a scrub of the stripes of `table`; `verdicts` gets a u32 for each of their pieces at a
/// 4-byte boundary, see [`decode_verdicts`].
///
/// # Safety
/// As for [`generate`]; the members are only read.
pub unsafe fn scrub(
    stream: &Stream,
    module: &Module,
    geometry: Geometry,
    base: Base<'_>,
    table: DeviceSlice<'_>,
    verdicts: DeviceSlice<'_>,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { launch(stream, module, SCRUB, geometry, base, table, Some((verdicts, 4 * geometry.pieces()))) }
}

/// # Safety
/// As for the three faces; `third` has so many bytes for each stripe.
unsafe fn launch(
    stream: &Stream,
    module: &Module,
    kernel: &str,
    geometry: Geometry,
    base: Base<'_>,
    table: DeviceSlice<'_>,
    third: Option<(DeviceSlice<'_>, u64)>,
) -> Result<()> {
    let stripes = stripes(geometry, table)?;
    if let Some((range, bytes)) = third
        && (range.len() < stripes * bytes || !range.ptr().0.is_multiple_of(4))
    {
        return Err(bad(format!(
            "{kernel} of {stripes} stripes needs {} bytes at a 4-byte boundary; there are {} at {}",
            stripes * bytes,
            range.len(),
            range.ptr()
        )));
    }
    let groups = stripes * geometry.pieces();
    let groups = i32::try_from(groups).map_err(|_| bad(format!("{groups} pieces are too many for one launch")))?;
    if groups == 0 {
        return Ok(());
    }
    let (base, members_at) = base.argument(stream.device())?;
    let params = Params { members_at, geometry }.to_bytes();
    let mut args = vec![KernelArg::Buffer(base), KernelArg::Buffer(table.ptr())];
    args.extend(third.map(|(range, _)| KernelArg::Buffer(range.ptr())));
    args.push(KernelArg::Bytes(&params));
    // SAFETY: the arguments are those of the kernels, with room for every group, and the caller
    // vouches for the module, the memory and the tables.
    unsafe { stream.launch(module, kernel, groups.cast_unsigned(), GROUP_SIZE, &args) }
}

/// The number of stripes in a table, or what is wrong with it.
fn stripes(geometry: Geometry, table: DeviceSlice<'_>) -> Result<u64> {
    let Geometry { data, chunk_bytes } = geometry;
    if !(1..=DATA_MAX).contains(&data) {
        return Err(bad(format!("RAID-6 has 1 to {DATA_MAX} data members, not {data}")));
    }
    if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(16) || chunk_bytes > u64::from(u32::MAX) {
        return Err(bad(format!("a chunk has a multiple of 16 bytes below 4 GiB, not {chunk_bytes}")));
    }
    let stripe_bytes = u64::from(geometry.members()) * 8;
    if !table.len().is_multiple_of(stripe_bytes) || !(table.is_empty() || table.ptr().0.is_multiple_of(8)) {
        return Err(bad(format!(
            "{} bytes at {} are no table of stripes of {} places of 8 bytes",
            table.len(),
            table.ptr(),
            geometry.members()
        )));
    }
    Ok(table.len() / stripe_bytes)
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::BadArgument, detail)
}

/// `Raid6Params` of `raid6.h`.
#[derive(Debug, Clone, Copy)]
struct Params {
    members_at: u64,
    geometry: Geometry,
}

impl Params {
    fn to_bytes(self) -> Vec<u8> {
        let words = [self.members_at, self.geometry.chunk_bytes].map(u64::to_ne_bytes).concat();
        let halves = [self.geometry.data, self.geometry.pieces() as u32].map(u32::to_ne_bytes).concat();
        [words, halves].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let [members_at, chunk_bytes] = [0, 1].map(|i: usize| u64::from_ne_bytes(bytes.as_chunks().0[i]));
        let data = u32::from_ne_bytes(bytes.as_chunks().0[4]);
        Some(Self { members_at, geometry: Geometry { data, chunk_bytes } })
    }
}

/// P and Q of chunks of one length.
pub fn oracle_generate(data: &[&[u8]]) -> [Vec<u8>; 2] {
    let len = data.first().map_or(0, |chunk| chunk.len());
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    for chunk in data.iter().rev() {
        for (i, byte) in chunk.iter().enumerate() {
            p[i] ^= byte;
            q[i] = field::double(q[i]) ^ byte;
        }
    }
    [p, q]
}

/// The lost members of a stripe, in the order of [`Loss::members`]. Of the lost chunks only the
/// length counts.
pub fn oracle_recover(members: &[&[u8]], loss: Loss) -> Vec<Vec<u8>> {
    let data = members.len() - 2;
    let geometry = Geometry { data: data as u32, chunk_bytes: members[0].len() as u64 };
    let zero = vec![0; members[0].len()];
    let known = |i: usize| if loss.members().any(|lost| lost == i as u32) { &zero[..] } else { members[i] };
    let known: Vec<_> = (0..members.len()).map(known).collect();
    let [p, q] = oracle_generate(&known[..data]);
    let lost_data: Vec<_> = loss.members().filter(|member| *member < geometry.p()).collect();
    let has = |member| loss.members().all(|lost| lost != member);
    let add = |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a ^ b).collect() };
    let times = |a: &[u8], factor: u8| -> Vec<u8> {
        let row = field::row(factor);
        a.iter().map(|a| row[usize::from(*a)]).collect()
    };
    let (of_p, of_q) = (add(&p, known[data]), add(&q, known[data + 1]));
    let mut whole: Vec<Vec<u8>> = known[..data].iter().map(|chunk| chunk.to_vec()).collect();
    match lost_data[..] {
        // p = a + b and q = 2^a a + 2^b b.
        [a, b] => {
            let (a_factor, b_factor) = (field::power(a), field::power(b));
            let inverse = field::divide(1, a_factor ^ b_factor);
            whole[a as usize] = times(&add(&of_q, &times(&of_p, b_factor)), inverse);
            whole[b as usize] = add(&of_p, &whole[a as usize]);
        }
        [a] if has(geometry.p()) => whole[a as usize] = of_p,
        [a] => whole[a as usize] = times(&of_q, field::divide(1, field::power(a))),
        _ => {}
    }
    let [p, q] = oracle_generate(&whole.iter().map(Vec::as_slice).collect::<Vec<_>>());
    whole.extend([p, q]);
    loss.members().map(|member| whole[member as usize].clone()).collect()
}

/// The verdict on each piece of a stripe.
pub fn oracle_scrub(members: &[&[u8]]) -> Vec<Verdict> {
    let data = members.len() - 2;
    let [p, q] = oracle_generate(&members[..data]);
    let powers: Vec<_> = (0..data as u32).map(field::power).collect();
    let suspect = |at: usize| match (p[at] ^ members[data][at], q[at] ^ members[data + 1][at]) {
        (0, 0) => Verdict::Clean,
        (_, 0) => Verdict::Member(data as u32),
        (0, _) => Verdict::Member(data as u32 + 1),
        (p, q) => {
            let found = powers.iter().position(|power| field::times(*power, p) == q);
            found.map_or(Verdict::Unknown, |member| Verdict::Member(member as u32))
        }
    };
    let both = |a, b| match (a, b) {
        (Verdict::Clean, other) | (other, Verdict::Clean) => other,
        (a, b) if a == b => a,
        _ => Verdict::Unknown,
    };
    let places: Vec<_> = (0..p.len()).collect();
    let pieces = places.chunks(PIECE_BYTES as usize);
    pieces.map(|piece| piece.iter().map(|at| suspect(*at)).fold(Verdict::Clean, both)).collect()
}

/// The stripes of a launch on the host.
struct HostStripes<'a> {
    base: DevicePtr,
    places: &'a [u64],
    params: Params,
}

impl<'a> HostStripes<'a> {
    /// # Safety
    /// The arguments are those of one of the kernels, with host addresses.
    unsafe fn new(base: DevicePtr, places: DevicePtr, params: &[u8], groups: u32) -> Self {
        let Some(params) = Params::from_bytes(params) else { unreachable!("RAID-6 has 24 bytes of parameters") };
        let stripes = u64::from(groups) / params.geometry.pieces();
        let count = stripes as usize * params.geometry.members() as usize;
        // SAFETY: the caller's promise; the table has a place for each member of each stripe.
        let places = unsafe { slice::from_raw_parts(places.0 as *const u64, count) };
        Self { base, places, params }
    }

    fn stripes(&self) -> impl Iterator<Item = &'a [u64]> {
        self.places.chunks_exact(self.params.geometry.members() as usize)
    }

    fn address(&self, place: u64) -> u64 {
        self.base.offset_by(self.params.members_at + place).0
    }

    /// # Safety
    /// The chunks are host memory that nobody writes as long as the slices live.
    unsafe fn chunks(&self, places: &[u64]) -> Vec<&'a [u8]> {
        let len = self.params.geometry.chunk_bytes as usize;
        // SAFETY: the caller's promise.
        places.iter().map(|place| unsafe { slice::from_raw_parts(self.address(*place) as *const u8, len) }).collect()
    }

    /// # Safety
    /// The chunk is host memory that nobody else uses and no slice covers.
    unsafe fn write(&self, place: u64, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(place) as *mut u8, bytes.len()) };
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn generate_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Bytes(params)] = launch.args else {
        unreachable!("{GENERATE} has two buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    for places in stripes.stripes() {
        let (data, parity) = places.split_at(stripes.params.geometry.data as usize);
        // SAFETY: as above; data is read and parity, which overlaps none of it, written.
        unsafe {
            let [p, q] = oracle_generate(&stripes.chunks(data));
            stripes.write(parity[0], &p);
            stripes.write(parity[1], &q);
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn recover_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Buffer(losses), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("{RECOVER} has three buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    for (i, places) in stripes.stripes().enumerate() {
        // SAFETY: as above, of four words for each stripe at a 4-byte boundary.
        let [first, second, ..] = unsafe { *(losses.0 as *const [u32; 4]).add(i) };
        let loss = Loss { first, second };
        // SAFETY: as above; what is lost is written after the others were read.
        unsafe {
            let found = oracle_recover(&stripes.chunks(places), loss);
            for (member, chunk) in loss.members().zip(found) {
                stripes.write(places[member as usize], &chunk);
            }
        }
    }
}

/// # Safety
/// As for every [`bifolio_device::HostKernel`].
unsafe fn scrub_on_host(launch: &HostLaunch<'_>) {
    let [KernelArg::Buffer(base), KernelArg::Buffer(places), KernelArg::Buffer(verdicts), KernelArg::Bytes(params)] =
        launch.args
    else {
        unreachable!("{SCRUB} has three buffers and one parameter struct");
    };
    // SAFETY: the caller's promise.
    let stripes = unsafe { HostStripes::new(*base, *places, params, launch.groups) };
    // SAFETY: as above, of a word for each group at a 4-byte boundary that nobody else uses.
    let words = unsafe { slice::from_raw_parts_mut(verdicts.0 as *mut u32, launch.groups as usize) };
    for (places, words) in stripes.stripes().zip(words.chunks_exact_mut(stripes.params.geometry.pieces() as usize)) {
        // SAFETY: as above; the members are only read.
        let found = oracle_scrub(&unsafe { stripes.chunks(places) });
        for (word, verdict) in words.iter_mut().zip(found) {
            *word = verdict.to_word();
        }
    }
}

/// Inputs with a known answer.
#[derive(Debug, Clone)]
pub struct Case {
    geometry: Geometry,
    /// The whole allocation with all members of all stripes.
    content: Vec<u8>,
    stripes: Vec<Vec<u64>>,
    losses: Vec<Loss>,
    by_address: bool,
    seed: u64,
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
        Self { geometry, content, stripes, losses, by_address: false, seed: draw.seed() }
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
    pub fn by_address(self) -> Self {
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
        let mut draw = Draw::from_seed(self.seed ^ 1);
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
        known_answer::compare("the verdict on piece", &known_answer::u32s(&found), &answer)
            .map_err(|wrong| self.sentence("scrub", &wrong))
    }

    fn expect(
        &self,
        what: &str,
        stream: &Stream,
        before: &[u8],
        after: &[u8],
        launch: impl Fn(Base<'_>, DeviceSlice<'_>) -> Result<()>,
    ) -> Result<(), String> {
        let found = || -> Result<Vec<u8>> {
            let memory = known_answer::on_device(stream, before)?;
            let start = if self.by_address { memory.ptr().0 } else { 0 };
            let base = if self.by_address { Base::Addresses } else { Base::Range(memory.slice()) };
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
        format!("{what}: {} stripes, {:?}: {wrong} (seed {})", self.stripes.len(), self.geometry, self.seed)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition: P and Q by slow multiplication, and every pair of lost members.
    #[test]
    fn whatever_two_members_are_lost_come_back() {
        let mut draw = Draw::afresh();
        for data in [1, 2, 3, 10, 255] {
            let chunks: Vec<_> = (0..data).map(|_| draw.bytes(16)).collect();
            let mut members = chunks.clone();
            let sum = |factor: &dyn Fn(usize) -> u8| -> Vec<u8> {
                let at = |at: usize| (0..data).fold(0, |sum, i| sum ^ field::times(factor(i), chunks[i][at]));
                (0..16).map(at).collect()
            };
            members.push(sum(&|_| 1));
            members.push(sum(&|i| (0..i).fold(1, |power, _| field::times(power, 2))));
            let slices: Vec<_> = members.iter().map(Vec::as_slice).collect();
            assert_eq!(oracle_generate(&slices[..data])[..], members[data..], "seed {}", draw.seed());
            let count = members.len() as u32;
            for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).step_by(1 + data / 20) {
                let found = oracle_recover(&slices, Loss::two(a, b));
                assert!(found == [members[a as usize].clone(), members[b as usize].clone()], "{a} and {b} of {data}");
            }
            for a in 0..count {
                assert!(oracle_recover(&slices, Loss::one(a)) == [members[a as usize].clone()]);
                let mut wrong = members.clone();
                wrong[a as usize][7] ^= 1 + draw.below(255) as u8;
                let wrong: Vec<_> = wrong.iter().map(Vec::as_slice).collect();
                // With one data member, P and Q are copies and data of the same weight.
                assert_eq!(oracle_scrub(&wrong), [Verdict::Member(a)], "{data} members, seed {}", draw.seed());
            }
            assert_eq!(oracle_scrub(&slices), [Verdict::Clean]);
        }
    }

    #[test]
    fn stripes_of_wrong_shape_are_refused() {
        let geometry = Geometry { data: 3, chunk_bytes: 4096 };
        let stripes = |geometry, len| {
            // SAFETY: nothing is read or written at the address.
            stripes(geometry, unsafe { DeviceSlice::from_raw_ordered(DevicePtr(4096), len) })
        };
        assert_eq!(stripes(geometry, 80).unwrap(), 2);
        assert!(stripes(geometry, 81).unwrap_err().to_string().contains("5 places"));
        assert!(stripes(Geometry { data: 256, ..geometry }, 0).unwrap_err().to_string().contains("256"));
        assert!(stripes(Geometry { chunk_bytes: 8, ..geometry }, 0).is_err());
        let refused = check(&[], &[Loss::one(5)], geometry, Base::Addresses).unwrap_err();
        assert!(refused.to_string().contains("beyond the 5"), "{refused}");
    }
}
