//! Bringing pages up to date from the memories of devices: home's content, what donors have released on it, and a
//! device's own unreleased bytes on top. No byte reaches the file.

use super::Copies;
use super::plan::{Fold, Folded};
use super::replica::{Image, Replica};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Scratch, TABLE_BYTES};
use crate::page::{Device, Home};
use bifolio_device::DeviceSlice;
use bifolio_kernels::{Addressing, fold};

/// Pages are folded by multiples of this.
const WORD_BYTES: u64 = 16;

/// What has become of each page, and whether anything failed once the kernel had run: what has become of pages is so
/// whatever failed then, as their base is another one.
pub(crate) type Done = (Vec<Folded>, Result<()>);

/// A place in a device's memory for each page of a fold: `page_bytes` apart.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Scratch(DeviceSlice<'a>),
    Own(Image),
}

impl Copies {
    /// How many pages with so many donors are folded at a time.
    pub(crate) fn pages_folded_at_a_time(&self, scratch_bytes: u64, donors: usize) -> u64 {
        let parts = 2 + 2 * donors.min(fold::DONORS_MAX) as u64;
        (scratch_bytes / parts / self.page_bytes).clamp(1, TABLE_BYTES / fold::ENTRY_BYTES)
    }

    /// Where home's content is read to if home is the file, before pages are folded.
    pub(crate) fn place_of_home<'a>(&self, fold: &Fold, scratch: &'a Scratch) -> Result<DeviceSlice<'a>> {
        Scratch::first(&scratch.incoming, fold.bytes.end - fold.bytes.start).map_err(|error| self.failed(error))
    }

    /// Folds pages of a device whose frames have memory, for bases too; `is_held` says of which the device has something.
    /// What kernels of the program's store meanwhile stays.
    pub(crate) fn fold(
        &self,
        device: Device,
        fold: &Fold,
        is_held: impl Fn(u64) -> bool,
        scratch: &Scratch,
    ) -> Result<Done> {
        let failed = |error| self.failed(error);
        let replica = self.replica(device)?;
        // Content, origin, and twin and base of each donor of one launch.
        let part_bytes = (fold.pages.end - fold.pages.start) * self.page_bytes;
        let part = |number: u64| scratch.incoming.slice().part(number * part_bytes, part_bytes).map_err(failed);
        // Where nothing was fetched, what lies there is nobody's change.
        let new =
            fold.pages.clone().filter(|page| replica.has(Image::Twin, replica.frame_of(*page)) && !is_held(*page));
        replica.copy(&scratch.stream, new, Image::Current, Image::Twin).map_err(failed)?;
        let (mut content, mut origin) = (Part::Own(Image::Twin), Some(Part::Own(Image::Base)));
        match fold.home {
            Home::Device(home) if home == device => {}
            Home::Device(home) => {
                self.copy_to_scratch(home, None, fold, part(0)?, scratch)?;
                content = Part::Scratch(part(0)?);
                if !fold.knows_file {
                    self.copy_to_scratch(home, Some(Image::Base), fold, part(1)?, scratch)?;
                    origin = Some(Part::Scratch(part(1)?));
                }
            }
            Home::File => {
                self.blank_tail(fold, part(0)?, scratch)?;
                (content, origin) = (Part::Scratch(part(0)?), None);
            }
        }
        let groups: Vec<_> = fold.donors.chunks(fold::DONORS_MAX).collect();
        let (last, before) = groups.split_last().map_or((&[][..], &[][..]), |(last, before)| (*last, before));
        let mut left_out = vec![];
        for donors in before {
            if origin.is_none() {
                // SAFETY: scratch memory, in the order of the stream.
                unsafe { scratch.stream.copy_on_device(part(1)?, part(0)?) }.map_err(failed)?;
                origin = Some(Part::Scratch(part(1)?));
            }
            let donors = self.donors(device, donors, fold, scratch)?;
            let into = (Part::Scratch(part(0)?), None, None);
            let (folded, outcome) = self.launch(replica, fold, into, content, None, &donors, scratch)?;
            outcome?;
            left_out.push(folded);
            content = Part::Scratch(part(0)?);
        }
        let donors = self.donors(device, last, fold, scratch)?;
        let into = (Part::Own(Image::Current), Some(Part::Own(Image::Twin)), Some(Part::Own(Image::Base)));
        let (mut folded, outcome) = self.launch(replica, fold, into, content, origin, &donors, scratch)?;
        for before in left_out {
            folded.iter_mut().zip(before).for_each(|(page, before)| page.lost |= before.lost);
        }
        Ok((folded, outcome.and(self.blank_behind(replica, fold, &is_held, scratch))))
    }

    /// Twins and bases of some donors, where this device reaches them.
    fn donors<'a>(
        &self,
        device: Device,
        donors: &[Device],
        fold: &Fold,
        scratch: &'a Scratch,
    ) -> Result<Vec<[Part<'a>; 2]>> {
        let part_bytes = (fold.pages.end - fold.pages.start) * self.page_bytes;
        let part = |number: u64| {
            let part = scratch.incoming.slice().part(number * part_bytes, part_bytes);
            part.map_err(|error| self.failed(error))
        };
        let place = |(number, donor): (u64, &Device)| {
            if *donor == device {
                return Ok([Part::Own(Image::Twin), Part::Own(Image::Base)]);
            }
            let [twin, base] = [part(2 + 2 * number)?, part(3 + 2 * number)?];
            self.copy_to_scratch(*donor, Some(Image::Twin), fold, twin, scratch)?;
            self.copy_to_scratch(*donor, Some(Image::Base), fold, base, scratch)?;
            Ok([Part::Scratch(twin), Part::Scratch(base)])
        };
        (0..).zip(donors).map(place).collect()
    }

    /// Copies what another device has of some pages: an image, or what it has released or fetched.
    fn copy_to_scratch(
        &self,
        from: Device,
        image: Option<Image>,
        fold: &Fold,
        to: DeviceSlice<'_>,
        scratch: &Scratch,
    ) -> Result<()> {
        let theirs = self.replica(from)?;
        let images = match image {
            Some(image) => theirs.pieces(&fold.bytes).map(|piece| (image, piece)).collect(),
            None => theirs.settled_images(&fold.bytes),
        };
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
        self.blank_tail(fold, to, scratch)
    }

    /// Behind the end of the file all is zeroes, as far as words go.
    fn blank_tail(&self, fold: &Fold, part: DeviceSlice<'_>, scratch: &Scratch) -> Result<()> {
        let len = fold.bytes.end - fold.bytes.start;
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

    #[allow(clippy::too_many_arguments, reason = "the operands of a kernel")]
    fn launch(
        &self,
        replica: &Replica,
        fold: &Fold,
        (current, twin, base): (Part<'_>, Option<Part<'_>>, Option<Part<'_>>),
        content: Part<'_>,
        origin: Option<Part<'_>>,
        donors: &[[Part<'_>; 2]],
        scratch: &Scratch,
    ) -> Result<Done> {
        let place = |page: u64, part: Part<'_>| match part {
            Part::Scratch(slice) => Ok(slice.ptr().0 + (page - fold.pages.start) * self.page_bytes),
            Part::Own(image) => {
                let at = page * self.page_bytes;
                if replica.has(image, replica.frame_of(page)) {
                    return Ok(replica.slice(image, &(at..at)).ptr().0);
                }
                let detail = format!("the page at byte {at} has no memory for what is folded into it");
                Err(Error::new(ErrorKind::Device, self.path(), detail))
            }
        };
        let entry = |page: u64| {
            let start = page * self.page_bytes;
            let mut list = [None; fold::DONORS_MAX];
            for (entry, [twin, base]) in list.iter_mut().zip(donors) {
                *entry = Some(fold::Donor { twin: place(page, *twin)?, base: place(page, *base)? });
            }
            Ok(fold::Entry {
                current: place(page, current)?,
                twin: twin.map(|part| place(page, part)).transpose()?,
                base: base.map(|part| place(page, part)).transpose()?,
                content: place(page, content)?,
                origin: origin.map(|part| place(page, part)).transpose()?,
                donors: list,
                len: (fold.bytes.end.min(start + self.page_bytes) - start).next_multiple_of(WORD_BYTES),
            })
        };
        let entries = fold.pages.clone().map(entry).collect::<Result<Vec<_>>>()?;
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
            return Ok((vec![perhaps; entries.len()], Err(self.failed(error))));
        }
        let folded = |word: &[u8]| {
            let flags = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            Folded {
                own: flags & fold::OWN_CHANGED != 0,
                lost: flags & fold::LOST != 0,
                is_ahead: flags & fold::AHEAD != 0,
            }
        };
        Ok((host.chunks_exact(4).map(folded).collect(), Ok(())))
    }
}
