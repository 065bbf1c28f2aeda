//! The protocol, for one page: home-based lazy release consistency with several concurrent writers (GAIA,
//! section 4; Zhou et al. for the home).
//!
//! A page has a home, the file, and a replica on some of the devices. Whoever changes it has a version of its
//! own, which counts its releases; the home's counts what the CPUs have changed. A replica knows up to which
//! version of everybody it has seen the page.
//!
//! ```text
//!            fetched                    released (something changed)
//!   absent ----------> current ------------------------------------> pending
//!      ^                |   ^                                           |
//!      |  dropped       |   | fetched (its own changes stay on top)     | flushed
//!      +----------------+   +------------- behind <---------------------+--- somebody else changes the page
//! ```
//!
//! `behind` and `pending` are not exclusive: a replica has changes that home lacks, or lacks changes that
//! others have, or both. This module says what must happen before what, and moves no byte; contents are
//! merged as follows, `base` being the content that a replica began with:
//! - a flush writes home those bytes of what was released that differ from the base; carefully means without
//!   those that differ from the base at home, too;
//! - a fetch takes home's bytes, save those that the device has changed since its last release.

/// A device's number in the cache; races between devices are won by the higher one.
pub type Device = usize;

/// Most devices of a cache: the compact form has a bit for each.
pub const DEVICES_MAX: usize = 64;

/// Versions of one page, and what its replicas have seen of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Page {
    /// Counts changes at home by others than devices.
    home: u32,
    /// The devices that have a replica.
    holders: u64,
    /// With no details: those whose replica is home's present content.
    current: u64,
    /// From the first release of a change on.
    details: Option<Box<Details>>,
}

/// The long form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Details {
    /// Releases of each device.
    newest: Vec<u32>,
    /// How many of them home has.
    at_home: Vec<u32>,
    /// What each device's replica has seen, where it has one.
    seen: Vec<Seen>,
}

/// What a replica has seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    home: u32,
    devices: Vec<u32>,
}

/// How what a device has released is written home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flush {
    /// All bytes that it changed.
    Plain,
    /// Without those that somebody else has changed at home, too: a higher device was among them.
    Careful,
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

impl Page {
    /// A page that nobody has a replica of.
    pub fn new() -> Self {
        Self { home: 1, holders: 0, current: 0, details: None }
    }

    /// Whether a device has a replica, up to date or not.
    pub fn is_held_by(&self, device: Device) -> bool {
        self.holders & bit(device) != 0
    }

    /// Whether a device has to fetch the page before it is up to date, as it has none or others have
    /// changed it since.
    pub fn is_behind(&self, device: Device) -> bool {
        match &self.details {
            None => self.current & bit(device) == 0,
            Some(details) => !self.is_held_by(device) || details.is_behind(device, self.home),
        }
    }

    /// Devices whose released changes home lacks, in the order in which they are flushed.
    pub fn pending(&self) -> impl Iterator<Item = Device> + '_ {
        let details = self.details.iter();
        details.flat_map(|details| (0..details.newest.len()).filter(|device| details.is_pending(*device)))
    }

    /// Whether home lacks changes that a device has released.
    pub fn is_pending(&self, device: Device) -> bool {
        self.details.as_ref().is_some_and(|details| details.is_pending(device))
    }

    /// Somebody else than a device has changed the page at home.
    pub fn changed_at_home(&mut self) {
        self.home += 1;
        self.current = 0;
    }

    /// A device with a replica has released a change, one of `devices` devices.
    pub fn released(&mut self, device: Device, devices: usize) {
        let (home, current) = (self.home, self.current);
        let details = self.details.get_or_insert_with(|| {
            // Who was not current has seen less than home's present version.
            let seen = |other| Seen { home: home - u32::from(current & bit(other) == 0), devices: vec![0; devices] };
            let (newest, at_home) = (vec![0; devices], vec![0; devices]);
            Box::new(Details { newest, at_home, seen: (0..devices).map(seen).collect() })
        });
        details.newest[device] += 1;
        details.seen[device].devices[device] = details.newest[device];
    }

    /// How a device's released changes are written home.
    pub fn how_to_flush(&self, device: Device) -> Flush {
        let Some(details) = &self.details else { return Flush::Plain };
        let unseen = |other: Device| details.at_home[other] > details.seen[device].devices[other];
        if (device + 1..details.newest.len()).any(unseen) { Flush::Careful } else { Flush::Plain }
    }

    /// Home has what a device has released.
    pub fn flushed(&mut self, device: Device) {
        if let Some(details) = &mut self.details {
            details.at_home[device] = details.newest[device];
        }
    }

    /// A device has home's present content, with everything that was pending.
    pub fn fetched(&mut self, device: Device) {
        debug_assert_eq!(self.pending().count(), 0, "what is pending is flushed before a fetch");
        self.holders |= bit(device);
        match &mut self.details {
            None => self.current |= bit(device),
            Some(details) => {
                details.seen[device] = Seen { home: self.home, devices: details.newest.clone() };
                self.compact();
            }
        }
    }

    /// A device has no replica any more.
    pub fn dropped(&mut self, device: Device) {
        self.holders &= !bit(device);
        self.current &= !bit(device);
        self.compact();
    }

    /// Goes back to the short form when home has everything and every replica has seen it: then nobody's
    /// version matters.
    fn compact(&mut self) {
        let Some(details) = &self.details else { return };
        let held = |device: &Device| self.is_held_by(*device);
        let unsettled = |device: Device| details.is_pending(device) || held(&device) && self.is_behind(device);
        if !(0..details.newest.len()).any(unsettled) {
            self.current = self.holders;
            self.details = None;
        }
    }
}

impl Details {
    fn is_pending(&self, device: Device) -> bool {
        self.newest[device] > self.at_home[device]
    }

    fn is_behind(&self, device: Device, home: u32) -> bool {
        let seen = &self.seen[device];
        let newer = |(other, newest): (usize, &u32)| other != device && *newest > seen.devices[other];
        seen.home < home || self.newest.iter().enumerate().any(newer)
    }
}

fn bit(device: Device) -> u64 {
    1 << device
}
