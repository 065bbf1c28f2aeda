//! `bifolio swap`: swap space with device memory in front of a file.

mod auto;
mod on;
mod processes;
mod status;
mod units;

pub use processes::keeper;

use crate::exit::{self, Failure};
use crate::global::Global;
use crate::output;
use bifolio_io::size;
use bifolio_paging::swap::{OffOptions, Place, off};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// What to do with swap space.
#[derive(Debug, Subcommand)]
pub enum SwapCommand {
    /// Switch swap on: a backing file without holes, device memory in front of it, a disk, and the system's use of it.
    ///
    /// Pages that the system has no room for are written to the backing and kept in device memory, from where they come
    /// back. If anything fails, everything is undone. It needs root.
    ///
    /// In write-through mode (the default) a page is written when the backing has it, so device memory can be dropped at any
    /// moment: for others who want it, if the device fails, or if the process is killed. In write-back mode a page is written
    /// when device memory has it. LOSS WINDOW of write-back: what was written within the flush interval (1 s, see
    /// --flush-interval) and the time that writing it back takes is lost if the device fails or is reset; programs that
    /// touch such a page get SIGBUS.
    #[command(after_help = exit::CODES)]
    On(on::OnArgs),
    /// Switch swap off and undo everything: the disk, the mount, the processes, and the backing if it was made for it.
    ///
    /// Everything on it comes back into memory first. If memory does not suffice, it stays on, and nothing is lost.
    #[command(after_help = exit::CODES)]
    Off(OffArgs),
    /// Show what swap does at this moment: hits, latency beside the backing's, memory.
    #[command(after_help = exit::CODES)]
    Status(status::StatusArgs),
    /// Change how much device memory is used; less is given back at once.
    #[command(after_help = exit::CODES)]
    Resize(ResizeArgs),
    /// Drop all device memory before the system sleeps, until `swap resume`.
    #[command(after_help = exit::CODES)]
    Suspend(OneArgs),
    /// Use device memory again after `swap suspend`.
    #[command(after_help = exit::CODES)]
    Resume(OneArgs),
    /// Write systemd units that switch swap on at every start, and drop device memory before every sleep.
    #[command(after_help = exit::CODES)]
    Install(units::InstallArgs),
    /// Switch everything off and remove units, folders and backings that were made.
    #[command(after_help = exit::CODES)]
    Uninstall(units::UninstallArgs),
    /// Keep a swap space that is being switched on.
    #[command(hide = true)]
    Serve(processes::FolderArgs),
    /// Serve a swap space for its keeper.
    #[command(hide = true)]
    Work(processes::FolderArgs),
}

/// Choices for `swap off`.
#[derive(Debug, ClapArgs)]
pub struct OffArgs {
    /// The backing of the one that is meant; the only one, if not named.
    pub backing: Option<PathBuf>,
    /// Keep the backing, though it was made for it.
    #[arg(long)]
    pub keep_backing: bool,
    /// Try even if memory seems not to suffice, and the kernel may then end programs; and even if pages were lost, as both of
    /// its processes were killed in write-back mode: programs that touch one get SIGBUS.
    #[arg(long)]
    pub force: bool,
}

/// Choices for `swap resize`.
#[derive(Debug, ClapArgs)]
pub struct ResizeArgs {
    /// The backing of the one that is meant; the only one, if not named.
    pub backing: Option<PathBuf>,
    /// Bytes of device memory, such as 2G; 0 gives all back.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub device_memory: u64,
}

/// Which one.
#[derive(Debug, ClapArgs)]
pub struct OneArgs {
    /// The backing of the one that is meant; all of them, if not named.
    pub backing: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Resized {
    device_memory: u64,
}

/// Carries the command out.
pub fn run(global: &Global, command: &SwapCommand) -> Result<(), Failure> {
    let place = Place::of_system();
    match command {
        SwapCommand::On(args) => on::run(global, args, &place),
        SwapCommand::Off(args) => switch_off(args, &place),
        SwapCommand::Status(args) => status::run(global, args, &place),
        SwapCommand::Resize(args) => {
            let device_memory = place.find(args.backing.as_deref())?.resize(args.device_memory)?;
            global.answer(&Resized { device_memory }, || format!("{} of device memory", size::human(device_memory)))
        }
        SwapCommand::Suspend(args) => chosen(&place, args)?.iter().try_for_each(|one| Ok(one.suspend()?)),
        SwapCommand::Resume(args) => chosen(&place, args)?.iter().try_for_each(|one| Ok(one.resume()?)),
        SwapCommand::Install(args) => units::install(args),
        SwapCommand::Uninstall(args) => units::uninstall(args, &place),
        SwapCommand::Serve(args) => processes::serve(args),
        SwapCommand::Work(args) => processes::work(args),
    }
}

fn chosen(place: &Place, args: &OneArgs) -> Result<Vec<bifolio_paging::swap::Instance>, Failure> {
    match &args.backing {
        Some(backing) => Ok(vec![place.find(Some(backing))?]),
        None => Ok(place.instances()?),
    }
}

fn switch_off(args: &OffArgs, place: &Place) -> Result<(), Failure> {
    let options = OffOptions { backing: args.backing.clone(), keeps_backing: args.keep_backing, is_forced: args.force };
    take_off(place, &options)
}

/// Switches one off, and tells on a terminal what is left.
fn take_off(place: &Place, options: &OffOptions) -> Result<(), Failure> {
    use std::io::IsTerminal;
    use std::sync::atomic::{AtomicBool, Ordering};
    let is_terminal = std::io::stderr().is_terminal();
    let has_told = AtomicBool::new(false);
    let tell = |left: u64| {
        if is_terminal && left > 0 {
            has_told.store(true, Ordering::Relaxed);
            eprint!("\rbringing back {:>12}   ", size::human(left));
        }
    };
    let done = off(place, options, &tell);
    if has_told.load(Ordering::Relaxed) {
        eprintln!();
    }
    Ok(done?)
}

/// One line for people, whatever is in a name.
fn line(text: &str) -> Result<(), Failure> {
    output::text(text)
}
