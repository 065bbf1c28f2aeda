//! `bifolio volume export`: a volume's content for other programs, until interrupted.

use super::export_args::ExportArgs;
use super::nbd;
use super::open::{complain, open_with};
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::output;
use bifolio_block::fuse;
use bifolio_io::Cancel;
use std::path::Path;

/// Exports.
pub fn run(options: &ExportArgs, cancel: &Cancel) -> Result<(), Failure> {
    if options.to.ublk {
        return Err(ublk());
    }
    match (&options.to.nbd, &options.to.mount) {
        (Some(socket), _) => nbd::run(options, socket, cancel),
        (None, Some(folder)) => mount(options, folder, cancel),
        (None, None) => Err(Failure::new(Code::Usage, "name a target: --nbd, --mount or --ublk")),
    }
}

fn ublk() -> Failure {
    let why = if Path::new("/dev/ublk-control").exists() {
        "exports as block devices (ublk) are not implemented"
    } else {
        "this kernel has no block devices of user space (/dev/ublk-control is missing; the module is ublk_drv)"
    };
    Failure::new(Code::Unavailable, format!("{why}; export with --nbd and attach it with nbd-client, or use --mount"))
}

fn mount(options: &ExportArgs, folder: &Path, cancel: &Cancel) -> Result<(), Failure> {
    let device = open_with(&options.images, &options.key, !options.read_only, options.discard, cancel)?.device;
    let name = options.images[0].file_name().unwrap_or("volume".as_ref());
    let mounted = fuse::export(device.clone(), name, folder)?;
    output::text(&output::printable(&folder.join(name).display().to_string()))?;
    Ok(mounted.serve_until(&|| cancel.is_cancelled(), &mut || complain(&*device), &|_| {
        eprintln_quietly("bifolio: the folder is unmounted; waiting for those who have the file open");
    })?)
}
