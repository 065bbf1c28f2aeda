//! `bifolio volume create raid6`, `scrub` and `rebuild`: md RAID-6 over files and block devices.

use super::force::ForceArgs;
use super::info;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::global::Global;
use crate::output::printable;
use crate::progress::Progress;
use bifolio_io::{Cancel, size};
use bifolio_volume::md::{ArrayState, Content, CreateOptions, LeftOut, Raid6, Replay, Rotation, ScrubReport};
use bifolio_volume::{BlockDevice, Load, RoutedFile};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Choices for `volume create raid6`.
#[derive(Debug, ClapArgs)]
pub struct Raid6Args {
    /// Files or block devices, four at least; their order is that of the array.
    #[arg(required = true, num_args = 4.., value_name = "MEMBER")]
    pub members: Vec<PathBuf>,
    /// Bytes of each member in a stripe: a power of 2 from 4K to 256M.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Where P and Q lie; mdadm's names.
    #[arg(long, default_value = "left-symmetric", value_name = "NAME")]
    pub layout: Rotation,
    /// A name, at most 32 bytes.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub name: String,
    /// Make the members, as new files of so many bytes.
    #[arg(long, value_parser = size::parse, value_name = "SIZE", conflicts_with = "force")]
    pub size: Option<u64>,
    /// What may be lost.
    #[command(flatten)]
    pub force: ForceArgs,
}

/// Choices for `volume scrub`.
#[derive(Debug, ClapArgs)]
pub struct ScrubArgs {
    /// All members of a RAID-6, in any order.
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<PathBuf>,
    /// Correct what is wrong where one member is; without it nothing is written.
    #[arg(long)]
    pub repair: bool,
}

/// Choices for `volume rebuild`.
#[derive(Debug, ClapArgs)]
pub struct RebuildArgs {
    /// The members that are left of a RAID-6, in any order.
    #[arg(required = true, value_name = "MEMBER")]
    pub members: Vec<PathBuf>,
    /// The new member; a file is created if there is none. One whose rebuild was interrupted goes on where it was.
    #[arg(long, value_name = "NEW")]
    pub onto: PathBuf,
    /// What it may lose. A former member of this array loses nothing.
    #[command(flatten)]
    pub force: ForceArgs,
}

#[derive(Debug, Serialize)]
struct Created {
    array: String,
    members: usize,
    layout: &'static str,
    chunk_bytes: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Scrubbed {
    array: String,
    /// What opening the array has made good.
    replay: Option<Replay>,
    resynchronised: bool,
    stripes: u64,
    wrong: u64,
    repaired: u64,
    unknown: u64,
    /// Stripes that were not compared, as they were being written when the array was last open.
    in_doubt: u64,
    findings: Vec<Found>,
}

#[derive(Debug, Serialize)]
struct Found {
    stripe: u64,
    /// In the member's chunk.
    inside: u64,
    bytes: u64,
    member: Option<String>,
    what: &'static str,
    /// In the array.
    offset: Option<u64>,
    repaired: bool,
}

#[derive(Debug, Serialize)]
struct Rebuilt {
    array: String,
    onto: String,
    role: usize,
    bytes: u64,
    /// What opening the array has made good.
    replay: Option<Replay>,
    state: &'static str,
    missing: Vec<usize>,
    left_out: Vec<Left>,
}

#[derive(Debug, Serialize)]
struct Left {
    member: String,
    reason: String,
}

fn open(paths: &[PathBuf], writable: bool) -> Result<Vec<Arc<dyn Load>>, Failure> {
    paths.iter().map(|path| member(path, writable)).collect()
}

/// A file, which nobody else writes to if it is to be written.
fn member(path: &Path, writable: bool) -> Result<Arc<dyn Load>, Failure> {
    let file = RoutedFile::open(path, writable)?;
    if writable {
        file.claim()?;
    }
    Ok(Arc::new(file))
}

/// A new file of zeroes, which must not be there.
fn make(path: &Path, bytes: u64) -> Result<(), Failure> {
    let file = std::fs::File::options().write(true).create_new(true).open(path);
    file.and_then(|file| file.set_len(bytes)).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::AlreadyExists { Code::Refused } else { Code::Failed };
        Failure::new(code, format!("{}: creating it failed: {error}", path.display()))
    })
}

/// A bar over stripes.
struct StripeBar(Progress);

impl StripeBar {
    fn new(doing: &str, array: &Raid6) -> Self {
        Self(Progress::of_steps(doing, array.stripes()))
    }

    fn set(&self, done: u64) {
        self.0.counter().store(done, Ordering::Relaxed);
    }
}

/// Makes an array.
pub fn create(global: &Global, options: &Raid6Args, cancel: &Cancel) -> Result<(), Failure> {
    let mut made = vec![];
    let created = make_members(options, &mut made).and_then(|()| create_of(options, cancel));
    if created.is_err() {
        // Files of ours only, which hold nothing yet.
        for path in made {
            let _ = std::fs::remove_file(path);
        }
    }
    let created = created?;
    global.answer(&created, || {
        let Created { array, members, layout, chunk_bytes, bytes } = &created;
        let (bytes, chunk) = (size::human(*bytes), size::human(*chunk_bytes));
        format!("RAID-6 {array}: {bytes} of {members} members, {layout}, chunks of {chunk}\n")
    })
}

fn make_members<'a>(options: &'a Raid6Args, made: &mut Vec<&'a Path>) -> Result<(), Failure> {
    for (at, path) in options.members.iter().enumerate() {
        if options.members[..at].contains(path) {
            let detail = format!("{}: named twice; every member must be a different file", path.display());
            return Err(Failure::new(Code::Usage, detail));
        }
    }
    let Some(bytes) = options.size else { return Ok(()) };
    for path in &options.members {
        make(path, bytes)?;
        made.push(path);
    }
    Ok(())
}

fn create_of(options: &Raid6Args, cancel: &Cancel) -> Result<Created, Failure> {
    let content = if options.size.is_some() { Content::Zeroes } else { Content::Unknown };
    let choices = CreateOptions { name: options.name.clone(), content, overwrite: options.force.overwrite() };
    let members = open(&options.members, true)?;
    let array = Raid6::create(members, options.chunk, options.layout, &choices)?;
    let stripes = StripeBar::new("computing parity", &array);
    array.resync(&mut |done, _| stripes.set(done), cancel)?;
    let created = Created {
        array: array.uuid(),
        members: array.layout().members(),
        layout: array.layout().rotation().name(),
        chunk_bytes: array.layout().chunk_bytes(),
        bytes: array.geometry().size,
    };
    array.close()?;
    Ok(created)
}

/// Compares data, P and Q of all stripes.
pub fn scrub(global: &Global, options: &ScrubArgs, cancel: &Cancel) -> Result<(), Failure> {
    let array = Raid6::assemble(open(&options.members, options.repair)?, options.repair)?;
    let resynchronised = options.repair && array.unsynced().is_some();
    if resynchronised {
        let stripes = StripeBar::new("computing parity", &array);
        array.resync(&mut |done, _| stripes.set(done), cancel)?;
    }
    let stripes = StripeBar::new("scrubbing", &array);
    let report = array.scrub(options.repair, &mut |done, _| stripes.set(done), cancel);
    drop(stripes);
    let report = report.inspect_err(|_| {
        // What opening it has changed is said also where there was nothing to scrub.
        if let Some(replay) = array.replay().filter(|replay| !replay.in_memory) {
            eprintln_quietly(&format!("bifolio: RAID-6 {}: {}", array.uuid(), info::replayed(&replay)));
        }
    })?;
    let answer = scrubbed(&array, resynchronised, report);
    array.close()?;
    global.answer(&answer, || describe(&answer))?;
    verdict(&answer, options.repair)
}

/// What is left to say when the findings were printed.
fn verdict(answer: &Scrubbed, repair: bool) -> Result<(), Failure> {
    let left = answer.wrong - answer.repaired;
    let (code, detail) = match (left, repair) {
        (0, _) if answer.in_doubt > 0 => {
            let detail = "stripes were being written when the array was last open and were not compared; --repair computes their P \
                          and Q again";
            (Code::Partial, format!("{} {detail}", answer.in_doubt))
        }
        (0, _) => return Ok(()),
        (_, true) => (Code::Partial, format!("{left} pieces are wrong in several members and were not changed")),
        (_, false) => {
            (Code::Wrong, format!("{left} pieces are wrong; --repair corrects those that are wrong in one member only"))
        }
    };
    Err(Failure::new(code, format!("RAID-6 {}: {detail}", answer.array)))
}

fn scrubbed(array: &Raid6, resynchronised: bool, report: ScrubReport) -> Scrubbed {
    let ScrubReport { stripes, in_doubt, wrong, repaired, unknown, findings } = report;
    let found = |finding: bifolio_volume::md::Finding| Found {
        stripe: finding.stripe,
        inside: finding.inside,
        bytes: finding.len,
        member: finding.name,
        what: finding.what,
        offset: finding.offset,
        repaired: finding.is_repaired,
    };
    let findings = findings.into_iter().map(found).collect();
    let replay = array.replay();
    Scrubbed { array: array.uuid(), replay, resynchronised, stripes, wrong, repaired, unknown, in_doubt, findings }
}

fn describe(answer: &Scrubbed) -> String {
    let mut text = String::new();
    if let Some(replay) = &answer.replay {
        let _ = writeln!(text, "RAID-6 {}: {}", answer.array, info::replayed(replay));
    }
    for found in &answer.findings {
        let place = format!("stripe {}, {} bytes at {} of the chunk", found.stripe, found.bytes, found.inside);
        let whose = match (&found.member, found.offset) {
            (None, _) => "several members are wrong".to_owned(),
            (Some(member), Some(offset)) => format!("data of {member} is wrong, byte {offset} of the array"),
            (Some(member), None) => format!("{} of {member} is wrong", found.what),
        };
        let whose = printable(&whose);
        let _ = writeln!(text, "{place}: {whose}{}", if found.repaired { ", corrected" } else { "" });
    }
    if answer.wrong > answer.findings.len() as u64 {
        let _ = writeln!(text, "and {} more", answer.wrong - answer.findings.len() as u64);
    }
    let resynchronised = if answer.resynchronised { "parity was computed again; " } else { "" };
    let _ = writeln!(
        text,
        "RAID-6 {}: {resynchronised}{} stripes, {} pieces wrong, {} corrected",
        answer.array, answer.stripes, answer.wrong, answer.repaired
    );
    text
}

/// Rebuilds a missing member.
pub fn rebuild(global: &Global, options: &RebuildArgs, cancel: &Cancel) -> Result<(), Failure> {
    let mut members = open(&options.members, true)?;
    let is_new = !options.onto.exists();
    if is_new {
        let bytes = members.iter().map(|member| member.geometry().size).min().unwrap_or(0);
        make(&options.onto, bytes)?;
    }
    let rebuilt = rebuild_onto(options, &mut members, cancel);
    if is_new && rebuilt.as_ref().is_err_and(|failed| failed.code() != Code::Interrupted) {
        let _ = std::fs::remove_file(&options.onto);
    }
    let rebuilt = rebuilt?;
    global.answer(&rebuilt, || describe_rebuilt(&rebuilt))
}

fn describe_rebuilt(rebuilt: &Rebuilt) -> String {
    let mut text = String::new();
    if let Some(replay) = &rebuilt.replay {
        let _ = writeln!(text, "RAID-6 {}: {}", rebuilt.array, info::replayed(replay));
    }
    let _ = writeln!(
        text,
        "RAID-6 {}: {} is member {}, {} rebuilt; {}",
        rebuilt.array,
        printable(&rebuilt.onto),
        rebuilt.role,
        size::human(rebuilt.bytes),
        rebuilt.state
    );
    for left in &rebuilt.left_out {
        let left = format!("left out: {}: {}", left.member, left.reason);
        let _ = writeln!(text, "{}", printable(&left));
    }
    text
}

fn rebuild_onto(options: &RebuildArgs, members: &mut Vec<Arc<dyn Load>>, cancel: &Cancel) -> Result<Rebuilt, Failure> {
    let onto = member(&options.onto, true)?;
    // Half rebuilt, it is a member to go on with; a stranger is refused by the rebuild itself.
    if is_partial(&*onto)? {
        members.push(Arc::clone(&onto));
    }
    let array = Raid6::assemble(std::mem::take(members), true)?;
    let before = array.missing();
    let stripes = StripeBar::new("rebuilding", &array);
    array.rebuild_over(onto, &options.force.overwrite(), &mut |done, _| stripes.set(done), cancel)?;
    drop(stripes);
    let missing = array.missing();
    let role = before.into_iter().find(|role| !missing.contains(role)).unwrap_or_default();
    let left = |LeftOut { member, reason }| Left { member, reason };
    let rebuilt = Rebuilt {
        array: array.uuid(),
        onto: options.onto.display().to_string(),
        role,
        bytes: array.stripes() * array.layout().chunk_bytes(),
        replay: array.replay(),
        state: match array.health() {
            ArrayState::Healthy => "healthy",
            ArrayState::Degraded => "degraded",
            ArrayState::Failed => "failed",
        },
        missing,
        left_out: array.left_out().into_iter().map(left).collect(),
    };
    array.close()?;
    Ok(rebuilt)
}

fn is_partial(device: &dyn BlockDevice) -> bifolio_volume::Result<bool> {
    use bifolio_volume::md::superblock;
    Ok(superblock::find(device)?.is_ok_and(|superblock| superblock.recovered_bytes.is_some()))
}
