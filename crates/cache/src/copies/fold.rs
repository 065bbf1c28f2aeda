//! Bringing pages up to date from the memories of devices: home's content, what donors have released on it, and a
//! device's own unreleased bytes on top. No byte reaches the file.

use super::Copies;
use super::places::Places;
use super::plan::{Fold, Folded};
use super::replica::{Image, Replica};
use crate::error::{Error, ErrorKind, Result};
use crate::frames::Incoming;
use crate::memory::{Scratch, TABLE_BYTES};
use crate::page::{Device, Home};
use bifolio_device::DeviceSlice;
use bifolio_kernels::{Addressing, fold};
use std::ops::Range;

/// Pages are folded by multiples of this.
const WORD_BYTES: u64 = 16;

/// Rows of a table that keep a large GPU at work (132 multiprocessors, each with eight groups), and what one is at least.
const ROWS_WANTED: u64 = 1024;
const ROW_BYTES_MIN: u64 = 4096;

/// What has become of each page, and whether anything failed once the kernel had run: what has become of pages is so
/// whatever failed then, as their base is another one.
pub(crate) type Done = (Vec<Folded>, Result<()>);

/// What is folded by one launch, in ascending order.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<'a> {
    pub(super) pages: &'a [u64],
    /// Where the file's bytes end.
    pub(super) end: u64,
}

/// What a fold writes: of each page the place.
#[derive(Debug, Clone)]
pub(super) struct Into {
    pub(super) current: Places,
    /// Nothing but what is folded counts where it has none.
    pub(super) twin: Option<Places>,
    pub(super) base: Option<Places>,
}

impl Copies {
    /// Whether kernels of a device may read where they lie all pages of a fold that other devices have: then no copies
    /// are made of them.
    pub(crate) fn reaches(&self, device: Device, fold: &Fold) -> Result<bool> {
        // What may have to be done again by another process is copied: it overwrites its inputs. A copy ends with the file,
        // and what lies behind it in the last word is zeroes.
        if self.replica(device)?.memory.is_kept() || !(fold.bytes.end - fold.bytes.start).is_multiple_of(WORD_BYTES) {
            return Ok(false);
        }
        let own = &self.replica(device)?.memory.device;
        let all = |other: Device, images: Vec<(Image, Range<u64>)>| -> Result<bool> {
            let theirs = self.replica(other)?;
            for (image, bytes) in images {
                if !theirs.let_read(image, &bytes, own).map_err(|error| self.failed(error))? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if let Home::Device(home) = fold.home
            && home != device
        {
            let theirs = self.replica(home)?;
            let base = if fold.knows_file { vec![] } else { images_of(theirs, Some(Image::Base), fold) };
            if !all(home, images_of(theirs, None, fold))? || !all(home, base)? {
                return Ok(false);
            }
        }
        for donor in fold.donors.iter().copied().filter(|donor| *donor != device) {
            let theirs = self.replica(donor)?;
            let images = [Image::Twin, Image::Base].map(|image| images_of(theirs, Some(image), fold));
            if !all(donor, images.concat())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How many pages of a fold are folded at a time.
    pub(crate) fn pages_folded_at_a_time(&self, fold: &Fold, scratch_bytes: u64) -> u64 {
        let donors = fold.donors.len();
        let copied = if fold.is_direct { 0 } else { donors.min(fold::DONORS_MAX) as u64 };
        let is_in_place = fold.is_direct && donors <= fold::DONORS_MAX && fold.home != Home::File;
        let pages = if is_in_place { u64::MAX } else { scratch_bytes / (2 + 2 * copied) / self.page_bytes };
        pages.clamp(1, TABLE_BYTES / fold::ENTRY_BYTES)
    }

    /// Where home's content is read to if home is the file, before pages are folded.
    pub(crate) fn place_of_home<'a>(&self, fold: &Fold, scratch: &'a Scratch) -> Result<DeviceSlice<'a>> {
        scratch.incoming.slice().part(0, fold.bytes.end - fold.bytes.start).map_err(|error| self.failed(error))
    }

    /// Folds pages of a device whose frames have memory, for bases too; `is_held` says of which the device has something.
    /// What kernels of the program's store meanwhile stays. `begin` is told, before what the device has is changed, whose
    /// twins and bases lie behind content and origin in scratch memory, and whether there is an origin: where frames are
    /// kept for another process, no input lies elsewhere.
    pub(crate) fn fold(
        &self,
        device: Device,
        fold: &Fold,
        is_held: impl Fn(u64) -> bool,
        scratch: &Scratch,
        begin: impl FnOnce(&[Device], bool) -> Result<()>,
    ) -> Result<Done> {
        let failed = |error| self.failed(error);
        let replica = self.replica(device)?;
        let is_kept = replica.memory.is_kept();
        let own = |image| Places::in_image(self.page_bytes, replica, image, &fold.pages);
        // Content, origin, and twin and base of each donor of one launch, where they cannot be read where they lie.
        let part = |number| self.part_of_scratch(number, fold, scratch);
        let in_part = |number| Ok(Places::in_slice(self.page_bytes, &fold.pages, part(number)?));
        // Where nothing was fetched, what lies there is nobody's change.
        let new =
            fold.pages.clone().filter(|page| replica.has(Image::Twin, replica.frame_of(*page)) && !is_held(*page));
        replica.copy(&scratch.stream, new, Image::Current, Image::Twin).map_err(failed)?;
        let (mut content, mut origin) = (own(Image::Twin), Some(own(Image::Base)));
        match fold.home {
            Home::Device(home) if home == device && !is_kept => {}
            Home::Device(home) => {
                content = self.theirs(home, None, fold, 0, scratch)?;
                if !fold.knows_file || is_kept {
                    let from = if fold.knows_file { device } else { home };
                    origin = Some(self.theirs(from, Some(Image::Base), fold, 1, scratch)?);
                }
            }
            Home::File => {
                self.blank_tail(&fold.bytes, part(0)?, scratch)?;
                (content, origin) = (in_part(0)?, None);
            }
        }
        let pages: Vec<u64> = fold.pages.clone().collect();
        let list = List { pages: &pages, end: fold.bytes.end };
        let groups: Vec<_> = fold.donors.chunks(fold::DONORS_MAX).collect();
        let (last, before) = groups.split_last().map_or((&[][..], &[][..]), |(last, before)| (*last, before));
        let mut left_out = vec![];
        for donors in before {
            if origin.is_none() {
                // SAFETY: scratch memory, in the order of the stream.
                unsafe { scratch.stream.copy_on_device(part(1)?, part(0)?) }.map_err(failed)?;
                origin = Some(in_part(1)?);
            }
            let donors = self.donors(device, donors, fold, scratch)?;
            let into = Into { current: in_part(0)?, twin: None, base: None };
            let (folded, outcome) = self.launch(replica, list, &into, (&content, None), &donors, scratch)?;
            outcome?;
            left_out.push(folded);
            content = in_part(0)?;
        }
        let donors = self.donors(device, last, fold, scratch)?;
        if is_kept {
            scratch.stream.synchronize().map_err(failed)?;
        }
        begin(last, origin.is_some())?;
        let from = (&content, origin.as_ref());
        let (mut folded, outcome) =
            self.launch(replica, list, &self.own_places(replica, fold), from, &donors, scratch)?;
        for before in left_out {
            folded.iter_mut().zip(before).for_each(|(page, before)| page.lost |= before.lost);
        }
        Ok((folded, outcome.and(self.blank_behind(replica, fold, &is_held, scratch))))
    }

    /// What the device has of the pages of a fold.
    fn own_places(&self, replica: &Replica, fold: &Fold) -> Into {
        let own = |image| Places::in_image(self.page_bytes, replica, image, &fold.pages);
        let [current, twin, base] = Image::ALL.map(own);
        Into { current, twin: Some(twin), base: Some(base) }
    }

    /// Does again what was begun with inputs that are all in memory of their own: what `begin` was told in
    /// [`Copies::fold`].
    pub(crate) fn fold_again(
        &self,
        device: Device,
        fold: &Fold,
        has_origin: bool,
        inputs: &Incoming,
        is_held: impl Fn(u64) -> bool,
        scratch: &Scratch,
    ) -> Result<Done> {
        let part_bytes = (fold.pages.end - fold.pages.start) * self.page_bytes;
        let part = |number: u64| {
            let part = inputs.slice().part(number * part_bytes, part_bytes);
            let part = part.map_err(|error| self.failed(error))?;
            Ok(Places::in_slice(self.page_bytes, &fold.pages, part))
        };
        let numbers = 0..fold.donors.len() as u64;
        let donors = numbers.map(|number| Ok([part(2 + 2 * number)?, part(3 + 2 * number)?]));
        let donors = donors.collect::<Result<Vec<_>>>()?;
        let origin = if has_origin { Some(part(1)?) } else { None };
        let replica = self.replica(device)?;
        let pages: Vec<u64> = fold.pages.clone().collect();
        let (list, from) = (List { pages: &pages, end: fold.bytes.end }, (&part(0)?, origin.as_ref()));
        let (folded, outcome) = self.launch(replica, list, &self.own_places(replica, fold), from, &donors, scratch)?;
        Ok((folded, outcome.and(self.blank_behind(replica, fold, &is_held, scratch))))
    }

    /// Scratch memory for the pages of a fold.
    fn part_of_scratch<'a>(&self, number: u64, fold: &Fold, scratch: &'a Scratch) -> Result<DeviceSlice<'a>> {
        let bytes = (fold.pages.end - fold.pages.start) * self.page_bytes;
        scratch.incoming.slice().part(number * bytes, bytes).map_err(|error| self.failed(error))
    }

    /// Twins and bases of some donors, where this device reaches them.
    fn donors(&self, device: Device, donors: &[Device], fold: &Fold, scratch: &Scratch) -> Result<Vec<[Places; 2]>> {
        let replica = self.replica(device)?;
        let place = |(number, donor): (u64, &Device)| {
            let places = |image, number| {
                if *donor == device && !replica.memory.is_kept() {
                    return Ok(Places::in_image(self.page_bytes, replica, image, &fold.pages));
                }
                self.theirs(*donor, Some(image), fold, number, scratch)
            };
            Ok([places(Image::Twin, 2 + 2 * number)?, places(Image::Base, 3 + 2 * number)?])
        };
        (0..).zip(donors).map(place).collect()
    }

    /// What another device has of the pages of a fold: where it lies, or in a part of scratch memory.
    fn theirs(
        &self,
        from: Device,
        image: Option<Image>,
        fold: &Fold,
        number: u64,
        scratch: &Scratch,
    ) -> Result<Places> {
        let theirs = self.replica(from)?;
        if fold.is_direct {
            return Ok(Places::in_images(self.page_bytes, theirs, images_of(theirs, image, fold), &fold.pages));
        }
        let part = self.part_of_scratch(number, fold, scratch)?;
        self.copy_to_scratch(theirs, images_of(theirs, image, fold), fold, part, scratch)?;
        Ok(Places::in_slice(self.page_bytes, &fold.pages, part))
    }

    /// Copies what another device has of the pages of a fold.
    fn copy_to_scratch(
        &self,
        theirs: &Replica,
        images: Vec<(Image, Range<u64>)>,
        fold: &Fold,
        to: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<()> {
        let copy = || -> bifolio_device::Result<()> {
            for (image, bytes) in images {
                let to = to.part(bytes.start - fold.bytes.start, bytes.end - bytes.start)?;
                let from = theirs.slice(image, &bytes);
                if theirs.memory.device.id().backend == scratch.stream.device().id().backend {
                    // SAFETY: both have memory there, and the file's lock keeps it until the stream is waited for.
                    unsafe { scratch.stream.copy_from_peer(to, &theirs.memory.device, from) }?;
                } else {
                    // There is no way between them but by the host.
                    let mut staging = vec![0; (bytes.end - bytes.start) as usize];
                    theirs.memory.device.create_stream()?.download(&mut staging, from)?;
                    scratch.stream.upload(to, &staging)?;
                }
            }
            Ok(())
        };
        copy().map_err(|error| self.failed(error))?;
        self.blank_tail(&fold.bytes, to, scratch)
    }

    /// Behind the end of the file all is zeroes, as far as words go.
    pub(super) fn blank_tail(&self, bytes: &Range<u64>, part: DeviceSlice<'_>, scratch: &Scratch) -> Result<()> {
        let len = bytes.end - bytes.start;
        let rest = len.next_multiple_of(WORD_BYTES) - len;
        if rest == 0 {
            return Ok(());
        }
        let blank = || -> bifolio_device::Result<()> {
            let tail = part.part(len, rest)?;
            // SAFETY: scratch memory, in the order of the stream.
            unsafe { scratch.stream.fill(tail, 0) }
        };
        blank().map_err(|error| self.failed(error))
    }

    /// And as far as the last page goes: of the base, and of all where the device had nothing of it.
    fn blank_behind(
        &self,
        replica: &Replica,
        fold: &Fold,
        is_held: impl Fn(u64) -> bool,
        scratch: &Scratch,
    ) -> Result<()> {
        let behind = fold.bytes.end.next_multiple_of(WORD_BYTES)..fold.pages.end * self.page_bytes;
        if behind.is_empty() {
            return Ok(());
        }
        let (frame, is_held) = (replica.frame_of(fold.pages.end - 1), is_held(fold.pages.end - 1));
        let is_blanked = |image: &Image| replica.has(*image, frame) && (*image == Image::Base || !is_held);
        for image in Image::ALL.into_iter().filter(is_blanked) {
            // SAFETY: the frame has memory, and the stream is waited for.
            let filled = unsafe { scratch.stream.fill(replica.slice(image, &behind), 0) };
            filled.map_err(|error| self.failed(error))?;
        }
        scratch.stream.synchronize().map_err(|error| self.failed(error))
    }

    /// Folds a list of pages of a replica, by the content and what the file has, which is the content where there is no
    /// other.
    pub(super) fn launch(
        &self,
        replica: &Replica,
        list: List<'_>,
        into: &Into,
        (content, origin): (&Places, Option<&Places>),
        donors: &[[Places; 2]],
        scratch: &Scratch,
    ) -> Result<Done> {
        let pages = list.pages.len() as u64;
        let rows_of_page = rows_of_page(pages, self.page_bytes);
        let row_bytes = self.page_bytes / rows_of_page;
        let place = |page: u64, places: &Places| {
            places.of(page).ok_or_else(|| {
                let detail = format!("the page at byte {} has no memory for a fold", page * self.page_bytes);
                Error::new(ErrorKind::Device, self.path(), detail)
            })
        };
        let optional = |page: u64, places: Option<&Places>| places.map(|places| place(page, places)).transpose();
        let mut entries = Vec::with_capacity((pages * rows_of_page) as usize);
        for page in list.pages.iter().copied() {
            let start = page * self.page_bytes;
            let mut its_donors = [None; fold::DONORS_MAX];
            for (entry, [twin, base]) in its_donors.iter_mut().zip(donors) {
                *entry = Some(fold::Donor { twin: place(page, twin)?, base: place(page, base)? });
            }
            let whole = fold::Entry {
                current: place(page, &into.current)?,
                twin: into.twin.as_ref().and_then(|places| places.of(page)),
                base: optional(page, into.base.as_ref())?,
                content: place(page, content)?,
                origin: optional(page, origin)?,
                donors: its_donors,
                len: (list.end.min(start + self.page_bytes) - start).next_multiple_of(WORD_BYTES),
            };
            if rows_of_page == 1 {
                entries.push(whole);
            } else {
                entries.extend((0..rows_of_page).map(|row| whole.part(row * row_bytes, row_bytes)));
            }
        }
        let enqueue = || -> bifolio_device::Result<DeviceSlice<'_>> {
            let stream = &scratch.stream;
            let table = fold::encode(&entries);
            let place = Scratch::first(&scratch.table, table.len() as u64)?;
            stream.upload(place, &table)?;
            let flags = Scratch::first(&scratch.results, entries.len() as u64 * 4)?;
            // SAFETY: the entries are pages of the replica and of scratch memory, which stay until the stream is waited
            // for; what kernels of the program's store there meanwhile stays.
            unsafe { replica.memory.kernels.fold(stream, Addressing::Absolute, place, flags) }?;
            Ok(flags)
        };
        let flags = enqueue().map_err(|error| self.failed(error))?;
        let mut host = vec![0; entries.len() * 4];
        if let Err(error) = scratch.stream.download(&mut host, flags) {
            let perhaps = Folded { own: true, lost: true, is_ahead: true };
            return Ok((vec![perhaps; pages as usize], Err(self.failed(error))));
        }
        let folded = |words: &[u8]| {
            let (words, _) = words.as_chunks::<4>();
            let flags = words.iter().fold(0, |flags, word| flags | u32::from_ne_bytes(*word));
            Folded {
                own: flags & fold::OWN_CHANGED != 0,
                lost: flags & fold::LOST != 0,
                is_ahead: flags & fold::AHEAD != 0,
            }
        };
        Ok((host.chunks_exact(4 * rows_of_page as usize).map(folded).collect(), Ok(())))
    }
}

/// The bytes of a fold by images: one of them, or what was released or fetched.
fn images_of(theirs: &Replica, image: Option<Image>, fold: &Fold) -> Vec<(Image, Range<u64>)> {
    match image {
        Some(image) => theirs.pieces(&fold.bytes).map(|piece| (image, piece)).collect(),
        None => theirs.settled_images(&fold.bytes),
    }
}

/// How many rows of the table a page is: a group of threads takes one, and few pages are to keep all of a device at work.
fn rows_of_page(pages: u64, page_bytes: u64) -> u64 {
    let most = (page_bytes / ROW_BYTES_MIN).max(1);
    let wanted = (ROWS_WANTED / pages.max(1)).clamp(1, most);
    let rows = 1 << wanted.ilog2();
    if page_bytes.is_multiple_of(rows * WORD_BYTES) { rows } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pages_are_many_rows() {
        assert_eq!([1, 3, 100, 1024, 5000].map(|pages| rows_of_page(pages, 64 << 10)), [16, 16, 8, 1, 1]);
        assert_eq!([1, 5000].map(|pages| rows_of_page(pages, 4096)), [1, 1]);
        assert_eq!(rows_of_page(1, 12_288), 2);
    }
}
