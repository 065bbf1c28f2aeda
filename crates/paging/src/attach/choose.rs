//! Which way a disk is attached.
//!
//! ublk comes first: no file and no loop device lie between the kernel and the worker. The loop device is next; that a killed
//! worker's requests are sent again takes Linux 6.9. NBD is last: its requests cross a socket, which takes memory of the
//! kernel's for each, and those of a killed worker wait for a timeout.

use super::Attachment;
use super::loop_disk::LoopDisk;
use super::nbd::Nbd;
use super::ublk::Ublk;
use bifolio_block::{Error, ErrorKind, Result};

/// All ways, the best first.
pub const ALL: [&dyn Attachment; 3] = [&Ublk, &LoopDisk, &Nbd];
/// What asks for the best.
pub const AUTO: &str = "auto";

/// A way, and why it is the one.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The way.
    pub way: &'static dyn Attachment,
    /// Why, as the end of a sentence.
    pub reason: String,
}

/// The way of this name, or the first that works here.
///
/// # Errors
/// `BadUse` for a name that no way has, `Missing` with every way's reason where none works.
pub fn choose(name: Option<&str>) -> Result<Choice> {
    let asked = name.filter(|name| *name != AUTO);
    // A look costs opening a device, so only ways that are asked for are looked at.
    let found = ALL.map(|way| {
        let is_asked = asked.is_none_or(|name| name == way.name());
        (way.name(), if is_asked { way.why_not() } else { None })
    });
    let (at, reason) = pick(asked, &found)?;
    Ok(Choice { way: ALL[at], reason })
}

/// The way of a record, whether it works or not: what was made is to be undone.
///
/// # Errors
/// `BadUse` for a name that no way has.
pub fn named(name: &str) -> Result<&'static dyn Attachment> {
    ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| unknown(name, &ALL.map(Attachment::name)))
}

fn unknown(name: &str, names: &[&str]) -> Error {
    let detail = format!("there is no such way to attach a disk; choose one of: {AUTO}, {}", names.join(", "));
    Error::new(ErrorKind::BadUse, name, detail)
}

/// Which of these ways, each with what it lacks, and why; the best comes first.
fn pick(asked: Option<&str>, found: &[(&'static str, Option<String>)]) -> Result<(usize, String)> {
    if let Some(name) = asked {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        let at = names.iter().position(|own| *own == name).ok_or_else(|| unknown(name, &names))?;
        return match &found[at].1 {
            None => Ok((at, "as asked for".to_owned())),
            Some(lacks) => {
                let detail = format!("it does not work here: {lacks}; leave the choice to `auto`, or name another");
                Err(Error::new(ErrorKind::Missing, format!("attaching a disk by {name}"), detail))
            }
        };
    }
    let why_not = |found: &[(&'static str, Option<String>)]| {
        let reasons = found.iter().filter_map(|(name, lacks)| Some(format!("{name}: {}", lacks.as_ref()?)));
        reasons.collect::<Vec<_>>().join("; ")
    };
    match found.iter().position(|(_, lacks)| lacks.is_none()) {
        Some(0) => Ok((0, "the best way works here".to_owned())),
        Some(at) => Ok((at, format!("the best that works here; {}", why_not(&found[..at])))),
        None => {
            let detail = format!("no way works here ({})", why_not(found));
            Err(Error::new(ErrorKind::Missing, "attaching a disk", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 3] = ["first", "second", "third"];

    proptest! {
        #[test]
        fn the_best_that_works_is_taken_and_what_better_ones_lack_is_told(works in proptest::array::uniform3(any::<bool>())) {
            let found = [0, 1, 2].map(|at| (NAMES[at], (!works[at]).then(|| format!("lacks {at}"))));
            match (pick(None, &found), works.iter().position(|works| *works)) {
                (Ok((at, reason)), Some(first)) => {
                    prop_assert_eq!(at, first);
                    for other in 0..3 {
                        prop_assert_eq!(reason.contains(&format!("lacks {other}")), other < first, "{}", reason);
                    }
                }
                (Err(error), None) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Missing);
                    prop_assert!((0..3).all(|at| error.to_string().contains(&format!("lacks {at}"))), "{}", error);
                }
                (picked, first) => prop_assert!(false, "{picked:?} of {first:?}"),
            }
            for (at, name) in NAMES.into_iter().enumerate() {
                let asked = pick(Some(name), &found);
                prop_assert_eq!(asked.is_ok(), works[at]);
                prop_assert!(asked.is_err() || asked.unwrap().0 == at);
            }
        }
    }

    #[test]
    fn a_name_that_no_way_has_is_refused_with_those_that_there_are() {
        let error = choose(Some("tape")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadUse);
        assert!(["auto", "ublk", "loop", "nbd"].iter().all(|name| error.to_string().contains(name)), "{error}");
        assert_eq!(named("tape").unwrap_err().kind(), ErrorKind::BadUse);
        assert_eq!(named("nbd").unwrap().name(), "nbd");
    }

    #[test]
    fn what_this_machine_lacks_is_told_and_the_choice_agrees() {
        for way in ALL {
            println!("{}: {}", way.name(), way.why_not().unwrap_or_else(|| "works here".to_owned()));
        }
        let best = ALL.iter().find(|way| way.why_not().is_none()).map(|way| way.name());
        assert_eq!(choose(Some(AUTO)).ok().map(|choice| choice.way.name()), best);
    }
}
