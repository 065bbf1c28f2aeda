//! Which files the other caches of this process have open.
//!
//! A process may have several caches: the C library, the shim, `libcufile.so` and the Python module each have this
//! crate linked in, with statics of its own, and a program in Rust makes caches as it likes. To each other they are
//! strangers, who are found out by the file's times and by leases as all are, with one exception. While a cache writes
//! to a file, it is told who opens it by the number of his process, and theirs is its own (`copies/home.rs`). So each
//! lists here what it has open, and does not trust a state that it has made itself of a file that another has listed
//! meanwhile.
//!
//! The list is plain numbers in memory that all copies find (`region.rs`), without a lock: a file that is opened claims
//! a place of its own, and tells those that are listed with the same file that somebody has come. Nothing here is waited
//! for, also not in a child of `fork`, for which what its parent listed counts as nothing.

mod region;

use region::{Place, Region};
use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

/// A file as a cache has it listed, until it is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    region: Option<Region>,
    /// None if there was no room, or the list is another version's: then nobody trusts what he has written himself.
    place: Option<&'static Place>,
}

/// That no other cache had a file open at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alone {
    met: u64,
    unlisted: u64,
}

impl Listed {
    /// A file, by its device and inode.
    pub(crate) fn of(device: u64, inode: u64) -> Self {
        Self::in_region(Region::of_the_process(), device, inode)
    }

    fn in_region(region: Option<Region>, device: u64, inode: u64) -> Self {
        let place = region.and_then(|region| region.list(device, inode));
        match (region, place) {
            (Some(region), Some(place)) => others(region, place).for_each(Place::meet),
            (Some(region), None) => _ = region.head.unlisted_came.fetch_add(1, SeqCst),
            (None, _) => {}
        }
        Self { region, place }
    }

    /// Whether no other cache of this process has the file open. None if one has, or if that is not known.
    pub(crate) fn alone(&self) -> Option<Alone> {
        let (region, place) = (self.region?, self.place?);
        let unlisted = region.head.unlisted_came.load(SeqCst);
        // Before the others are looked for: who comes after that is counted here.
        let met = place.met.load(SeqCst);
        let nobody = others(region, place).next().is_none() && region.head.unlisted_left.load(SeqCst) == unlisted;
        nobody.then_some(Alone { met, unlisted })
    }

    /// Whether that is so still, and was all the time.
    pub(crate) fn is_alone_since(&self, then: Alone) -> bool {
        self.alone() == Some(then)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        match (self.region, self.place) {
            (_, Some(place)) => place.leave(),
            (Some(region), None) => _ = region.head.unlisted_left.fetch_add(1, SeqCst),
            (None, None) => {}
        }
    }
}

/// Where the library whose cache is the process's says so: the first that puts something there.
pub(crate) fn offered() -> Option<&'static AtomicPtr<c_void>> {
    Region::of_the_process().map(|region| &region.head.offered)
}

/// The other places with the file of one.
fn others(region: Region, place: &'static Place) -> impl Iterator<Item = &'static Place> {
    let (device, inode) = place.file();
    region.places_of(device, inode).filter(move |other| !std::ptr::eq(*other, place))
}

#[cfg(test)]
mod tests {
    use super::region::testing::region;
    use super::*;

    fn list(region: Region, inode: u64) -> Listed {
        Listed::in_region(Some(region), 7, inode)
    }

    #[test]
    fn who_has_a_file_for_himself_knows_it_and_who_has_not_too() {
        let region = region();
        let one = list(region, 1);
        let then = one.alone().unwrap();
        let other_file = list(region, 2);
        assert!(one.is_alone_since(then) && other_file.alone().is_some());
        let two = list(region, 1);
        assert_eq!((one.alone(), two.alone()), (None, None));
        assert!(!one.is_alone_since(then));
        drop(two);
        // Again, but not the whole time.
        assert!(!one.is_alone_since(then) && one.alone().is_some());
        drop(one);
        assert!(list(region, 1).alone().is_some());
    }

    #[test]
    fn nobody_is_alone_with_files_that_could_not_be_listed() {
        let region = region();
        let one = list(region, 1);
        let then = one.alone().unwrap();
        let all: Vec<_> =
            (10..20_000).map(|inode| list(region, inode)).take_while(|listed| listed.place.is_some()).collect();
        assert!(all.len() > 1000, "room for {} files", all.len());
        // The one without a place has come and gone.
        assert!(one.alone().is_some() && !one.is_alone_since(then));
        let unlisted = list(region, 1);
        assert_eq!((one.alone(), unlisted.alone()), (None, None));
        drop((unlisted, all));
        assert!(one.alone().is_some() && list(region, 3).alone().is_some());
    }

    #[test]
    fn a_copy_of_another_version_is_known_to_be_there() {
        let region = region();
        let one = list(region, 1);
        assert!(one.alone().is_some());
        let newer = list(region.as_another_version(), 1);
        assert_eq!((newer.place.is_none(), newer.alone()), (true, None));
        assert_eq!(one.alone(), None, "it cannot tell which files the newer one has");
        drop(newer);
        assert!(one.alone().is_some());
    }

    #[test]
    fn what_a_parent_listed_is_not_its_childs() {
        let region = region();
        let one = list(region, 1);
        region.list_for(std::process::id() + 1, 7, 1);
        assert!(one.alone().is_some() && list(region, 2).alone().is_some());
    }

    #[test]
    fn nowhere_to_list_it_means_not_to_know() {
        assert_eq!(Listed::in_region(None, 7, 1).alone(), None);
    }

    /// Of two that come at the same time at least one sees the other, and each sees whoever came before it asked.
    #[test]
    fn of_those_who_come_together_nobody_stays_alone() {
        let region = region();
        for _ in 0..2000 {
            let barrier = std::sync::Barrier::new(2);
            let come = || {
                barrier.wait();
                let listed = list(region, 1);
                let alone = listed.alone();
                barrier.wait();
                // Both are listed now.
                assert!(alone.is_none_or(|then| !listed.is_alone_since(then)));
                barrier.wait();
                drop(listed);
            };
            std::thread::scope(|scope| {
                scope.spawn(come);
                come();
            });
        }
    }
}
