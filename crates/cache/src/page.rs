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
//! - a flush writes home those bytes of what was released that differ from the base, and leaves home's where that
//!   differs from the base as well: somebody has written it since, and it is never taken back. What a lower device
//!   has written there is overwritten all the same, if the replica has not seen it, as of devices the higher wins;
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
    seen: Vec<Option<Box<Seen>>>,
}

/// What a replica has seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    home: u32,
    /// By device; shorter where it has seen none of the others.
    devices: Vec<u32>,
}

impl Seen {
    fn of(&self, device: Device) -> u32 {
        self.devices.get(device).copied().unwrap_or(0)
    }
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

    /// Devices whose released changes home lacks, in the order in which they are flushed: the highest first, as
    /// those after it leave what they find.
    pub fn pending(&self) -> impl Iterator<Item = Device> + '_ {
        let details = self.details.iter();
        details.flat_map(|details| (0..details.newest.len()).rev().filter(|device| details.is_pending(*device)))
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
        let (home, current, holders) = (self.home, self.current, self.holders);
        let details = self.details.get_or_insert_with(|| {
            // Who was not current has seen less than home's present version.
            let seen = |other| {
                let seen = Seen { home: home - u32::from(current & bit(other) == 0), devices: vec![] };
                (holders & bit(other) != 0).then(|| Box::new(seen))
            };
            let (newest, at_home) = (vec![0; devices], vec![0; devices]);
            Box::new(Details { newest, at_home, seen: (0..devices).map(seen).collect() })
        });
        details.newest[device] += 1;
        if let Some(seen) = &mut details.seen[device] {
            seen.devices.resize(devices, 0);
            seen.devices[device] = details.newest[device];
        }
    }

    /// Whether nobody is known to have changed home since a device's replica was brought up to date, save for the
    /// device itself.
    pub fn is_home_as_seen(&self, device: Device) -> bool {
        let Some(details) = &self.details else { return self.current & bit(device) != 0 };
        let others = (0..details.newest.len()).filter(|other| *other != device);
        let is_present = |seen: &Seen| seen.home == self.home;
        details.seen[device].as_deref().is_some_and(is_present)
            && !others.into_iter().any(|other| self.lacks(device, other))
    }

    /// Whether home has changes of another device that a device's replica has not seen.
    pub fn lacks(&self, device: Device, other: Device) -> bool {
        self.details.as_ref().is_some_and(|details| {
            let seen = details.seen[device].as_ref().map_or(0, |seen| seen.of(other));
            details.at_home[other] > seen
        })
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
                details.seen[device] = Some(Box::new(Seen { home: self.home, devices: details.newest.clone() }));
                self.compact();
            }
        }
    }

    /// A device has no replica any more.
    pub fn dropped(&mut self, device: Device) {
        self.holders &= !bit(device);
        self.current &= !bit(device);
        if let Some(details) = &mut self.details {
            details.seen[device] = None;
        }
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
        let Some(seen) = &self.seen[device] else { return true };
        let newer = |(other, newest): (usize, &u32)| other != device && *newest > seen.of(other);
        seen.home < home || self.newest.iter().enumerate().any(newer)
    }
}

#[cfg(test)]
impl Page {
    /// Bytes of its versions.
    fn metadata_bytes(&self) -> usize {
        let details = self.details.as_ref().map_or(0, |details| {
            let counts = (details.newest.capacity() + details.at_home.capacity()) * size_of::<u32>();
            let of_one = |seen: &Seen| size_of::<Seen>() + seen.devices.capacity() * size_of::<u32>();
            let seen: usize = details.seen.iter().flatten().map(|seen| of_one(seen)).sum();
            size_of::<Details>() + counts + details.seen.capacity() * size_of::<Option<Box<Seen>>>() + seen
        });
        size_of::<Self>() + details
    }
}

fn bit(device: Device) -> u64 {
    1 << device
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under one percent of what is cached, with pages of 64 KiB: of a page that nobody has changed, and of one that
    /// two of a dozen devices write to without end.
    #[test]
    fn versions_take_little_memory() {
        let (page_bytes, devices) = (64 << 10, 12);
        let mut page = Page::new();
        (0..devices).for_each(|device| page.fetched(device));
        // And for each device up to which doubt it was compared.
        let compared = devices * size_of::<u32>();
        assert!((page.metadata_bytes() + compared) * 500 < page_bytes, "{}", page.metadata_bytes());
        let mut page = Page::new();
        for round in 0..10 {
            for device in [3, 7] {
                page.fetched(device);
                page.released(device, devices);
                if round % 2 == 0 {
                    page.flushed(device);
                }
                let pending: Vec<_> = page.pending().collect();
                for device in pending {
                    page.flushed(device);
                }
            }
        }
        page.released(3, devices);
        println!("{} and {compared} bytes for a page of {page_bytes}", page.metadata_bytes());
        assert!((page.metadata_bytes() + compared) * 100 < page_bytes, "{}", page.metadata_bytes());
    }
}
