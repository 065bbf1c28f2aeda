//! One page's contents, merged as the protocol says (`bifolio_cache::page`).

use super::{BYTES, Bytes};
use bifolio_cache::page::{BeforeRelease, Device, Home, Page};

/// A device's replica of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// What kernels see and change.
    pub(crate) now: Bytes,
    /// What was released last, or brought before the first release.
    pub(crate) twin: Bytes,
    /// Of what is pending: what the file has, at home; else the twin when it last had everything.
    pub(crate) base: Option<Bytes>,
}

/// What an acquire brings to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Incoming {
    pub(crate) content: Bytes,
    /// What the file has of it, as of the same look.
    pub(crate) origin: Bytes,
    /// Whether a donor's change was left out.
    pub(crate) lost: bool,
}

/// A page in the file and on the devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Contents {
    pub(crate) page: Page,
    pub(crate) file: Bytes,
    pub(crate) replicas: Vec<Option<Replica>>,
    /// The devices of which it is known that the file is as their base, or twin, has it: nobody whom the cache does not
    /// know has written since.
    looked: u8,
    /// The devices on which nothing of it is acquired, as what they have was changed for somebody else: kernels store
    /// nothing there until it is.
    pub(crate) idle: u8,
}

impl Replica {
    /// Lays what was released over other content; says whether some of it was left out.
    fn lay_over(&self, content: &mut Bytes) -> bool {
        let base = self.base.as_ref().expect("what is pending has a base");
        let mut lost = false;
        for (at, byte) in content.iter_mut().enumerate() {
            let [twin, base] = [self.twin[at], base[at]];
            if twin != base {
                lost |= *byte != base && *byte != twin;
                *byte = if *byte == base { twin } else { *byte };
            }
        }
        lost
    }
}

impl Contents {
    pub(crate) fn new(devices: usize) -> Self {
        Self { page: Page::new(), file: [0; BYTES], replicas: vec![None; devices], looked: 0, idle: 0 }
    }

    fn replica(&mut self, device: Device) -> &mut Replica {
        self.replicas[device].as_mut().expect("who has released has a replica")
    }

    /// Finds out whether somebody has changed the file whom the cache does not know. A page that is on a device meets
    /// that there, unless kernels use it, or it has changes that were not released, and not by somebody who has acquired
    /// it: then it goes to the file first. Who acquires sees what has changed.
    pub(crate) fn detect(&mut self, device: Device, acquires: bool, is_in_use: bool) -> bool {
        // What home's base lacks, everybody would miss, whatever he has seen himself.
        let of = match self.page.home() {
            Home::Device(home) => home,
            Home::File => device,
        };
        if self.looked & 1 << of != 0 {
            return false;
        }
        if self.page.home() != Home::File || !self.page.is_behind(device) {
            self.looked |= 1 << of;
        }
        let differs = |content: &Bytes| *content != self.file;
        let is_changed = match (self.page.home(), &self.replicas[device]) {
            (Home::Device(home), _) => {
                self.replicas[home].as_ref().and_then(|home| home.base.as_ref()).is_some_and(differs)
            }
            // What it has released may be in the file or not.
            // Who brings the page reads it anyway.
            (Home::File, Some(_)) if self.page.is_behind(device) => false,
            (Home::File, Some(replica)) => differs(&replica.twin) && replica.base.as_ref().is_none_or(differs),
            (Home::File, None) => false,
        };
        if is_changed {
            match self.page.home() {
                Home::Device(home) if !is_in_use && (self.is_quiet(home) || acquires && home == device) => {
                    self.rebase(home);
                    self.idle |= u8::from(!acquires || home != device) << home;
                }
                _ => {
                    self.flush_all();
                    self.page.changed();
                }
            }
        }
        is_changed
    }

    /// Lays what home has for the file on what the file has by now.
    fn rebase(&mut self, home: Device) {
        let file = self.file;
        let replica = self.replica(home);
        let mut content = file;
        replica.lay_over(&mut content);
        let now =
            std::array::from_fn(|at| if replica.now[at] == replica.twin[at] { content[at] } else { replica.now[at] });
        *replica = Replica { now, twin: content, base: Some(file) };
        self.page.rebased(home, content != file);
        self.forget_bases();
    }

    /// Home's content, with what the donors have changed.
    pub(crate) fn incoming(&self) -> Incoming {
        let (mut content, origin) = match self.page.home() {
            Home::File => (self.file, self.file),
            Home::Device(home) => {
                let home = self.replicas[home].as_ref().expect("home has a replica");
                (home.twin, home.base.expect("home has a base"))
            }
        };
        let mut lost = false;
        for donor in self.page.donors() {
            lost |= self.replicas[donor].as_ref().expect("a donor has a replica").lay_over(&mut content);
        }
        Incoming { content, origin, lost }
    }

    /// What the kernel of a fetch or fold does: what the device has changed since its last release stays on top.
    pub(crate) fn merge(&mut self, device: Device, Incoming { content, origin, .. }: Incoming) {
        let now = match &self.replicas[device] {
            None => content,
            Some(Replica { now, twin, .. }) => {
                std::array::from_fn(|at| if now[at] == twin[at] { content[at] } else { now[at] })
            }
        };
        self.replicas[device] = Some(Replica { now, twin: content, base: Some(origin) });
    }

    /// Reads what a device needs, and what the file has as well.
    pub(crate) fn read_for(&mut self, device: Device) -> Incoming {
        let is_known = match self.page.home() {
            Home::File => true,
            Home::Device(home) => self.looked & 1 << home != 0,
        };
        self.looked = self.looked & !(1 << device) | u8::from(is_known) << device;
        self.incoming()
    }

    /// Notes that a device has what was read for it.
    pub(crate) fn brought(&mut self, device: Device, incoming: &Incoming) {
        if self.page.is_settled() {
            self.page.fetched(device);
        } else {
            self.page.folded(device, incoming.content != incoming.origin, incoming.lost);
        }
        self.forget_bases();
    }

    /// A fetch or a fold.
    pub(crate) fn bring(&mut self, device: Device) {
        let incoming = self.read_for(device);
        self.merge(device, incoming);
        self.brought(device, &incoming);
    }

    pub(crate) fn acquire(&mut self, device: Device, is_in_use: bool) {
        self.detect(device, true, is_in_use);
        self.idle &= !(1 << device);
        if self.page.is_behind(device) {
            self.bring(device);
        }
    }

    /// Whether anything was.
    pub(crate) fn release(&mut self, device: Device, is_in_use: bool) -> bool {
        if self.is_quiet(device) {
            return false;
        }
        if self.page.before_release(device) == BeforeRelease::Bring {
            // It may be flushed by that.
            self.detect(device, false, is_in_use);
        }
        match self.page.before_release(device) {
            BeforeRelease::Nothing => {}
            BeforeRelease::Bring => self.bring(device),
            BeforeRelease::Flush => self.flush_all(),
        }
        let is_pending = self.page.is_pending(device);
        let replica = self.replica(device);
        if !is_pending {
            replica.base = Some(replica.twin);
        }
        replica.twin = replica.now;
        self.page.released(device);
        self.forget_bases();
        true
    }

    /// Writes to the file what the first of the order has released; whether there was one.
    pub(crate) fn flush_one(&mut self) -> bool {
        let Some(device) = self.page.order().next() else { return false };
        let replica = self.replicas[device].as_ref().expect("what is pending is kept");
        let lost = replica.lay_over(&mut self.file);
        self.page.flushed(device, lost);
        self.forget_bases();
        true
    }

    pub(crate) fn flush_all(&mut self) {
        while self.flush_one() {}
    }

    /// The file takes one byte of the first of the order, and no more. What it has taken is no change any more.
    pub(crate) fn flush_half(&mut self) {
        let Some(device) = self.page.order().next() else { return };
        let (mut file, before) = (self.file, self.file);
        self.replica(device).lay_over(&mut file);
        if let Some(at) = (0..file.len()).find(|at| file[*at] != before[*at]) {
            self.file[at] = file[at];
            if let Some(base) = &mut self.replica(device).base {
                base[at] = file[at];
            }
            self.page.half_flushed();
            self.forget_bases();
        }
    }

    /// Whether there is more than one byte for the file in what is written first, all of which it takes.
    pub(crate) fn has_halves(&self) -> bool {
        let first = self.page.order().next().and_then(|device| self.replicas[device].as_ref());
        let Some((replica, base)) = first.and_then(|replica| Some((replica, replica.base?))) else { return false };
        let changed: Vec<usize> = (0..BYTES).filter(|at| replica.twin[*at] != base[*at]).collect();
        changed.len() > 1 && changed.iter().all(|at| self.file[*at] == base[*at])
    }

    /// A CPU reads through the cache, from home. A donor does not bring what it has not asked for, nor does home where
    /// kernels use it.
    pub(crate) fn read(&mut self, is_in_use: bool) -> Bytes {
        if let Home::Device(home) = self.page.home() {
            self.detect(home, false, is_in_use);
        }
        match (self.page.home(), self.page.donors().next()) {
            (Home::Device(_), None) => {}
            (Home::Device(home), Some(_)) if !is_in_use => self.bring(home),
            _ => self.flush_all(),
        }
        self.incoming().content
    }

    /// A CPU writes through the cache, or somebody past it.
    pub(crate) fn write(&mut self, at: usize, value: u8, is_known: bool) {
        if is_known {
            self.flush_all();
        }
        self.file[at] = value;
        if is_known {
            self.page.changed();
        } else {
            self.looked = 0;
        }
    }

    /// Somebody has cut the file, and it has grown again.
    pub(crate) fn cut(&mut self, len: usize) {
        let replicas = self.replicas.iter_mut().flatten();
        let images =
            replicas.flat_map(|replica| [Some(&mut replica.now), Some(&mut replica.twin), replica.base.as_mut()]);
        images.flatten().chain([&mut self.file]).for_each(|image| image[len..].fill(0));
        self.page.changed();
    }

    /// Memory is needed, or the device's program has ended.
    pub(crate) fn evict(&mut self, device: Device) {
        if self.page.is_pending(device) {
            self.flush_all();
        }
        self.lose(device);
    }

    /// The device is gone: what the others have of what it had for the file is written at once.
    pub(crate) fn give_up(&mut self, device: Device) {
        let was_pending = self.page.is_pending(device);
        if self.page.home() == Home::Device(device) {
            self.looked = 0;
        }
        self.lose(device);
        if was_pending {
            self.flush_all();
        }
    }

    /// A device has no replica any more.
    pub(crate) fn lose(&mut self, device: Device) {
        self.replicas[device] = None;
        self.page.dropped(device);
        self.forget_bases();
    }

    /// Bases of what is not pending are given back.
    fn forget_bases(&mut self) {
        for (device, replica) in self.replicas.iter_mut().enumerate() {
            if let Some(replica) = replica
                && !self.page.is_pending(device)
            {
                replica.base = None;
            }
        }
    }

    /// Whether a device has nothing that it has not released.
    pub(crate) fn is_quiet(&self, device: Device) -> bool {
        self.replicas[device].as_ref().is_none_or(|replica| replica.now == replica.twin)
    }

    /// What the file would have if all were flushed.
    pub(crate) fn settled(&self) -> Bytes {
        let mut copy = self.clone();
        copy.flush_all();
        copy.file
    }
}
