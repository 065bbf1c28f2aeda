//! `bifolio volume export --nbd`: which plugin, with which parameters and key, and what its failures mean here. Starting
//! nbdkit and ending it is `bifolio_block::nbd`.

use super::export_args::ExportArgs;
use super::open::{ask, warn};
use crate::exit::{Code, Failure, code_of_volume, eprintln_quietly};
use crate::output;
use bifolio_block::nbd::{self, Ended, Event, Export, Server};
use bifolio_io::Cancel;
use bifolio_volume::{ErrorKind, Layer};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Names the plugin's file.
const PLUGIN_VARIABLE: &str = "BIFOLIO_NBDKIT_PLUGIN";

/// Serves until interrupted.
pub fn run(options: &ExportArgs, socket: &Path, cancel: &Cancel) -> Result<(), Failure> {
    let plugin = plugin()?;
    let images = options.images.iter().map(|image| image.canonicalize()).collect::<Result<Vec<_>, _>>();
    nbd::free(socket)?;
    // As the server will: what has to be put right is put right now.
    let layers = bifolio_volume::describe(&options.images, !options.read_only)?;
    warn(&layers);
    let images = images.map_err(|error| Failure::failed(format!("{}: {error}", options.images[0].display())))?;
    let needs_key = layers.iter().any(|layer| matches!(layer, Layer::Luks(_)));
    if !needs_key && options.key.key_file.is_some() {
        return Err(bifolio_volume::unencrypted(&options.images[0].display().to_string()).into());
    }
    let secret = if needs_key { Some(("key", key_file(options)?)) } else { None };
    let export = Export {
        plugin,
        socket: socket.to_owned(),
        is_read_only: options.read_only,
        parameters: parameters(options, &images),
        secret,
    };
    serve(Server::start(&export)?, socket, cancel)
}

/// What the plugin reads.
fn parameters(options: &ExportArgs, images: &[PathBuf]) -> Vec<OsString> {
    let image = |path: &PathBuf| {
        let mut pair = OsString::from("image=");
        pair.push(path);
        pair
    };
    let flags = [("readonly", options.read_only), ("discard", options.discard), ("any-cost", options.key.any_cost)];
    let flags = flags.into_iter().chain([("kinds", true)]).map(|(name, value)| format!("{name}={value}").into());
    images.iter().map(image).chain(flags).collect()
}

fn serve(server: Server, socket: &Path, cancel: &Cancel) -> Result<(), Failure> {
    let mut printed = Ok(());
    let ended = server.serve(&|| cancel.is_cancelled(), &mut |event| {
        match event {
            Event::Ready => {
                printed = output::text(&output::printable(&format!("nbd+unix:///?socket={}", socket.display())));
            }
            Event::Said(line) => eprintln_quietly(&format!("bifolio: {line}")),
        }
        printed.is_ok()
    })?;
    printed?;
    match ended {
        Ended::Well => Ok(()),
        Ended::BeforeReady => Err(Failure::interrupted()),
        Ended::Failed { status, said, was_ready } => {
            if let Some(failure) = said.iter().find_map(|line| of_plugin(line)).filter(|_| !was_ready) {
                return Err(failure);
            }
            let last = said.join("; ");
            Err(Failure::failed(if last.is_empty() { format!("nbdkit has ended: {status}") } else { last }))
        }
    }
}

/// Why the plugin has not opened the volume, with the same exit code as if that had failed here.
fn of_plugin(line: &str) -> Option<Failure> {
    use ErrorKind::{
        BadMembers, BadState, BadUse, Damaged, Exists, InUse, Missing, NoSpace, NotAVolume, NotFound, Permission, Read,
        ReadOnly, TooFewMembers, Unsupported, Write, WrongKey,
    };
    let kinds = [
        BadMembers,
        BadState,
        BadUse,
        Damaged,
        Exists,
        InUse,
        Missing,
        NoSpace,
        NotAVolume,
        NotFound,
        Permission,
        Read,
        ReadOnly,
        TooFewMembers,
        Unsupported,
        Write,
        WrongKey,
    ];
    kinds.into_iter().find_map(|kind| {
        let sentence = line.strip_prefix(&format!("{kind:?}: "))?;
        Some(Failure::new(code_of_volume(kind), sentence))
    })
}

/// The key, for nbdkit alone.
fn key_file(options: &ExportArgs) -> Result<File, Failure> {
    let name = options.images[0].display().to_string();
    Ok(nbd::secret_file(&ask(options.key.key_file.as_deref(), &name)?)?)
}

/// The plugin: as named, beside the command (where cargo builds it), or where it is installed.
fn plugin() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(PLUGIN_VARIABLE).filter(|name| !name.is_empty()) {
        return Ok(named.into());
    }
    let exe = std::env::current_exe().and_then(|exe| exe.canonicalize()).unwrap_or_default();
    let folder = exe.parent().unwrap_or(Path::new("/"));
    let places = [folder.join("../lib/bifolio/nbdkit-bifolio-plugin.so"), folder.join("libbifolio_nbdkit.so")];
    places.iter().find(|place| place.exists()).cloned().ok_or_else(|| {
        let detail = format!(
            "the plugin for nbdkit is neither {} nor {}; install it with the command, or name it in {PLUGIN_VARIABLE}",
            places[0].display(),
            places[1].display()
        );
        Failure::new(Code::Unavailable, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_plugin_keeps_its_code() {
        let failure = of_plugin("WrongKey: disk.img: no keyslot opens with this passphrase or key").unwrap();
        assert_eq!(
            (failure.code(), &*failure.message()),
            (Code::WrongKey, "disk.img: no keyslot opens with this passphrase or key")
        );
        assert_eq!(of_plugin("Damaged: disk.img: it was truncated").unwrap().code(), Code::Damaged);
        assert!(of_plugin("disk.img: WrongKey: it was truncated").is_none());
    }
}
