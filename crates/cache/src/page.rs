//! The protocol, for one page: lazy release consistency with several concurrent writers (GAIA, section 4; Zhou et al.
//! for the home), and a home that travels to the devices that use the page.
//!
//! A page's *home* is where its authoritative content is: the file, or a device that has what the file lacks. Devices
//! that have released changes which home lacks are its *donors*.
//!
//! ```text
//!                 released by a device that is up to date
//!          file ------------------------------------------> that device
//!           ^  \                                             |     |
//!           |   \ folded, where there are donors             |     | folded: who acquires the page takes home's
//!           |    `------------------------------> device <---|-----' content and all donors' changes, and is home
//!           '------------------------------------------------'
//!                 flushed: home's changes, then all donors'
//! ```
//!
//! This module says who has what, and moves no byte. A device has three contents of a page: what kernels see, the *twin*
//! (what was released, or fetched before the first release), and while it is home or a donor the *base*. Home's base is
//! what the file has, a donor's what the twin was when it last had everything. Contents are merged by one rule:
//! - a donor's byte counts if its twin differs from its base, and is laid over what has the value of its base. Where
//!   that has another value, somebody has changed it whom the donor has not seen: a CPU in the file, home, or an earlier
//!   donor. He stays, and is never taken back;
//! - a flush does the same to the file, beginning with home;
//! - whoever folds or fetches keeps what it has changed since its last release on top.
//!
//! So a fold and a flush have the same outcome, whichever comes first: [`Page::order`] is the order of both.

/// A device's number in the cache.
pub type Device = usize;

/// Most devices of a cache: a page has a bit for each.
pub const DEVICES_MAX: usize = 64;

/// Where a page's authoritative content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// In the file, as the operating system's page cache shows it.
    File,
    /// On a device, which has changes that the file lacks.
    Device(Device),
}

/// What has to be done before a device's changes of a page are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BeforeRelease {
    /// It is released as it is.
    Nothing,
    /// The device acquires the page: whether the file has changed is asked as well, and if so, nothing else is needed.
    Bring,
    /// The page is flushed.
    Flush,
}

/// What is known of one page: plain numbers, which mean the same to every process that reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Page {
    /// The devices that have a replica.
    holders: u64,
    /// Holders that lack something that others have released or written.
    behind: u64,
    /// Devices that have released what home lacks.
    donors: u64,
    /// Those whose changes the device that is home has folded since it became home: if it is lost, they are donors
    /// again.
    lenders: u64,
    /// The device that is home, plus one; 0 for the file.
    home: u16,
    /// The device that was home before, plus one, and is again if home is lost; 0 for the file.
    heir: u16,
    /// 1 if home may have what neither the file nor its heir and lenders have.
    alone: u16,
    /// 1 if the heir's base is not what the file has any more, as a flush of home's has failed half-way.
    outdated: u16,
}

impl Page {
    /// A page that nobody has a replica of.
    pub const fn new() -> Self {
        Self { holders: 0, behind: 0, donors: 0, lenders: 0, home: 0, heir: 0, alone: 0, outdated: 0 }
    }

    /// Whether it can be so, of a cache with so many devices: what is said of a device is said of one that has a replica.
    pub fn is_sound(&self, devices: usize) -> bool {
        let known = if devices < DEVICES_MAX { bit(devices) - 1 } else { u64::MAX };
        let is_holder = |number: u16| match (number as usize).checked_sub(1) {
            None => true,
            Some(device) => device < devices && self.is_held_by(device),
        };
        (self.holders & !known) | ((self.behind | self.donors | self.lenders) & !self.holders) == 0
            && is_holder(self.home)
            && is_holder(self.heir)
            && (self.heir == 0 || self.heir != self.home)
            && self.alone <= 1
            && self.outdated <= 1
    }

    /// Where its authoritative content is.
    pub fn home(&self) -> Home {
        match self.home {
            0 => Home::File,
            number => Home::Device(number as Device - 1),
        }
    }

    /// Whether a device has a replica, up to date or not.
    pub fn is_held_by(&self, device: Device) -> bool {
        self.holders & bit(device) != 0
    }

    /// Whether a device has to bring the page before it is up to date: it has none, or lacks what others have done.
    pub fn is_behind(&self, device: Device) -> bool {
        !self.is_held_by(device) || self.behind & bit(device) != 0
    }

    /// Whether a device has released what home lacks.
    pub fn is_donor(&self, device: Device) -> bool {
        self.donors & bit(device) != 0
    }

    /// Whether the file has everything that was released.
    pub fn is_settled(&self) -> bool {
        self.home == 0 && self.donors == 0
    }

    /// Whether a device has what the file lacks: as home, for itself, or in case home is lost. Its replica cannot be
    /// dropped, and its base is kept.
    pub fn is_pending(&self, device: Device) -> bool {
        self.home() == Home::Device(device) || self.is_donor(device) || self.is_lender(device)
    }

    /// The devices that have a replica, those of them that lack something, and those that are pending: a bit for each.
    pub(crate) fn states(&self) -> [u64; 3] {
        let of = |number: u16| (number as usize).checked_sub(1).map_or(0, bit);
        [self.holders, self.holders & self.behind, self.donors | self.lenders | of(self.home) | of(self.heir)]
    }

    /// Whether a device has given home what the file lacks, and keeps it in case home is lost.
    pub fn is_lender(&self, device: Device) -> bool {
        self.heir == number(device) || self.lenders & bit(device) != 0
    }

    /// Whether what was released goes with a device if it is lost: it is a donor, or home and has what it has released
    /// itself, or what somebody had who is gone.
    pub fn is_lost_with(&self, device: Device) -> bool {
        self.is_donor(device) || self.home() == Home::Device(device) && self.alone != 0
    }

    /// Whether a device's base is what the file has: it is home, or was before.
    pub fn knows_file(&self, device: Device) -> bool {
        self.home == number(device) || self.heir == number(device) && self.outdated == 0
    }

    /// Whether a device folds a page as another one: home and donors are the same.
    pub fn is_folded_as(&self, other: &Self, device: Device) -> bool {
        (self.home, self.donors, self.knows_file(device)) == (other.home, other.donors, other.knows_file(device))
    }

    /// What has to be done before a device releases a change. The base of a lender is needed in case home is lost, and
    /// does not tell the change from what home has. Who is brought the page overwrites, with what it has not released,
    /// what it may not have acquired: a CPU's bytes in the file, if it has been behind since before it lent.
    pub fn before_release(&self, device: Device) -> BeforeRelease {
        if !self.is_lender(device) || self.is_home_again(device) {
            BeforeRelease::Nothing
        } else if self.knows_file(device) || !self.is_behind(device) {
            BeforeRelease::Bring
        } else {
            BeforeRelease::Flush
        }
    }

    /// Whether a device has what home has, and the file's content as its base.
    fn is_home_again(&self, device: Device) -> bool {
        self.heir == number(device) && !self.is_behind(device)
    }

    /// The devices that have released what home lacks.
    pub fn donors(&self) -> impl Iterator<Item = Device> + use<> {
        let mut left = self.donors;
        std::iter::from_fn(move || {
            let device = left.trailing_zeros() as Device;
            left &= left.wrapping_sub(1);
            (device < DEVICES_MAX).then_some(device)
        })
    }

    /// The devices that have what the file lacks, in the order in which it is laid over the file, or over each other:
    /// home, then the donors by their numbers.
    pub fn order(&self) -> impl Iterator<Item = Device> + use<> {
        let home = match self.home() {
            Home::File => None,
            Home::Device(device) => Some(device),
        };
        home.into_iter().chain(self.donors())
    }

    /// A device with a replica has released a change. One that is up to date with the file becomes home, and one that
    /// was home before and lacks nothing is home again: no byte moves.
    pub fn released(&mut self, device: Device) {
        debug_assert_eq!(self.before_release(device), BeforeRelease::Nothing);
        let is_first = self.is_settled() && !self.is_behind(device);
        if is_first || self.is_home_again(device) {
            (self.home, self.heir, self.alone, self.outdated) = (number(device), self.home, 1, 0);
        } else if self.home() == Home::Device(device) {
            self.alone = 1;
        } else {
            self.donors |= bit(device);
        }
        self.behind |= self.holders & !bit(device);
    }

    /// A device has brought home's content and all donors' changes, and is home from now on, if the file lacks any of
    /// it. `lost` says that a donor's change was left out, as somebody whom it had not seen was first.
    pub fn folded(&mut self, device: Device, is_ahead: bool, lost: bool) {
        // What the file has was read anew where it was home, and who is not behind was not asked.
        if lost || self.home() == Home::File {
            self.changed();
        }
        self.holders |= bit(device);
        self.behind &= !bit(device);
        if !is_ahead {
            self.is_in_file();
        } else if self.home() == Home::Device(device) {
            self.lenders |= self.donors;
        } else {
            // Who was home has what was lent to it. What the device has released itself is in home alone.
            self.alone = u16::from(self.is_donor(device));
            (self.home, self.heir, self.lenders) = (number(device), self.home, self.donors & !bit(device));
            self.outdated = 0;
        }
        self.donors = 0;
    }

    /// The file has what a device has released, which was the first in the order. `lost` says that some of it was left
    /// out, as somebody whom it had not seen was first.
    pub fn flushed(&mut self, device: Device, lost: bool) {
        if lost {
            self.changed();
        }
        if self.home() == Home::Device(device) {
            self.is_in_file();
        }
        self.donors &= !bit(device);
    }

    /// A flush of a device's has failed after it had written something: what home was before does not know the file any
    /// more, and nobody is up to date.
    pub fn half_flushed(&mut self) {
        self.outdated = u16::from(self.heir != 0);
        self.changed();
    }

    /// The file has all that home has: nobody has to keep it.
    fn is_in_file(&mut self) {
        (self.home, self.heir, self.lenders, self.alone, self.outdated) = (0, 0, 0, 0, 0);
    }

    /// A device has the file's content, of a page that is settled.
    pub fn fetched(&mut self, device: Device) {
        debug_assert!(self.is_settled(), "what the file lacks is folded or flushed, not fetched");
        self.holders |= bit(device);
        self.behind &= !bit(device);
    }

    /// Somebody else than a device has changed the file: nobody is up to date.
    pub fn changed(&mut self) {
        self.behind = self.holders;
    }

    /// The file has changed under the device that is home, which has laid what it has for the file on that: it stays home
    /// if the file lacks any of it, and everybody else is behind. What home was before does not know the file any more.
    pub fn rebased(&mut self, device: Device, is_ahead: bool) {
        debug_assert_eq!(self.home(), Home::Device(device), "who lays its own on the file is home");
        let was_behind = self.is_behind(device);
        self.changed();
        if !was_behind {
            self.behind &= !bit(device);
        }
        if is_ahead {
            self.outdated = u16::from(self.heir != 0);
        } else {
            self.is_in_file();
        }
    }

    /// A device has no replica any more. What it alone had is lost, if it was not flushed before: home is where it was
    /// before, and has to be flushed, so that the loss of another device takes no more with it. The file has to be looked
    /// at for that, as the one who is gone may have written to it half-way.
    pub fn dropped(&mut self, device: Device) {
        if self.home() == Home::Device(device) {
            self.donors |= self.lenders;
            (self.home, self.heir, self.lenders, self.outdated) = (self.heir, 0, 0, 0);
            self.alone = u16::from(self.home != 0);
            self.changed();
        } else if self.is_lender(device) {
            self.alone = 1;
        }
        if self.heir == number(device) {
            (self.heir, self.outdated) = (0, 0);
        }
        for devices in [&mut self.holders, &mut self.behind, &mut self.donors, &mut self.lenders] {
            *devices &= !bit(device);
        }
    }
}

fn bit(device: Device) -> u64 {
    1 << device
}

/// As home and heir have it.
fn number(device: Device) -> u16 {
    device as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under one percent of what is cached, with the shortest pages too.
    #[test]
    fn a_page_takes_little_memory() {
        assert_eq!(size_of::<Page>(), 40);
    }

    #[test]
    fn home_goes_where_the_page_is_used_and_back_to_the_file() {
        let mut page = Page::new();
        (0..3).for_each(|device| page.fetched(device));
        page.released(1);
        assert_eq!((page.home(), page.is_behind(0), page.is_behind(1)), (Home::Device(1), true, false));
        page.released(2);
        assert_eq!((page.home(), page.order().collect::<Vec<_>>()), (Home::Device(1), vec![1, 2]));
        page.folded(0, true, false);
        assert_eq!((page.home(), page.order().collect::<Vec<_>>()), (Home::Device(0), vec![0]));
        assert!(!page.is_behind(0) && page.is_behind(1) && page.is_behind(2));
        page.flushed(0, false);
        assert!(page.is_settled() && page.is_behind(1));
    }

    #[test]
    fn a_device_that_has_not_seen_the_file_is_a_donor() {
        let mut page = Page::new();
        page.fetched(0);
        page.changed();
        page.released(0);
        assert!(page.home() == Home::File && page.is_donor(0) && page.is_behind(0));
        page.folded(0, false, true);
        assert!(page.is_settled() && !page.is_behind(0));
    }

    #[test]
    fn what_only_a_lost_device_had_is_gone_and_the_others_have_it_again() {
        let mut page = Page::new();
        (0..3).for_each(|device| page.fetched(device));
        page.released(0);
        page.folded(1, true, false);
        page.released(2);
        page.folded(1, true, false);
        assert!(page.is_pending(0) && page.is_pending(2) && page.order().eq([1]));
        assert!(!page.is_lost_with(1), "it has released nothing itself");
        page.dropped(1);
        assert!(page.order().eq([0, 2]) && page.is_behind(0) && !page.is_held_by(1));
        assert!(page.is_lost_with(0) && page.is_lost_with(2));
    }

    #[test]
    fn what_a_lost_lender_had_is_in_home_alone() {
        let mut page = Page::new();
        (0..3).for_each(|device| page.fetched(device));
        page.released(0);
        page.folded(1, true, false);
        assert!(!page.is_lost_with(0) && !page.is_lost_with(1));
        page.dropped(0);
        assert!(page.is_lost_with(1));
        page.flushed(1, false);
        assert!(!page.is_lost_with(1));
        // A donor that becomes home keeps its own change to itself.
        page.released(1);
        page.released(2);
        page.folded(2, true, false);
        assert!(!page.is_lost_with(1) && page.is_lost_with(2));
    }

    #[test]
    fn a_device_is_home_again_where_it_lacks_nothing() {
        let mut page = Page::new();
        (0..2).for_each(|device| page.fetched(device));
        page.released(0);
        page.folded(1, true, false);
        page.released(0);
        assert!(page.order().eq([0]) && page.is_behind(1));
        // Now the other lacks something, and may be the only one who has what it released.
        assert_eq!(page.before_release(1), BeforeRelease::Bring);
        page.folded(1, true, false);
        page.released(1);
        assert!(page.order().eq([1]) && page.is_pending(0));
    }
}
