//! What can be asked of `volume export`.

use super::open::KeyArgs;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// What fits into an address of a socket (`unix(7)`).
const SOCKET_BYTES_MAX: usize = 107;

/// Choices for `volume export`.
#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// Image file or block device; several are members of one volume.
    #[arg(required = true, value_name = "IMG")]
    pub images: Vec<PathBuf>,
    /// The key.
    #[command(flatten)]
    pub key: KeyArgs,
    /// Where to.
    #[command(flatten)]
    pub to: ExportTo,
    /// Refuse writes.
    #[arg(long)]
    pub read_only: bool,
    /// Pass discards through, which shows whoever sees the image which of its sectors are in use.
    #[arg(long)]
    pub discard: bool,
}

/// Where a volume is offered.
#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct ExportTo {
    /// As an NBD server on this socket; needs nbdkit.
    #[arg(long, value_name = "unix:PATH", value_parser = parse_socket)]
    pub nbd: Option<PathBuf>,
    /// As the only file in this empty folder, by FUSE.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// As a block device of this kernel.
    #[arg(long)]
    pub ublk: bool,
}

/// The path in `unix:PATH`.
pub fn parse_socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if path.len() > SOCKET_BYTES_MAX => {
            Err(format!("the path of a socket has at most {SOCKET_BYTES_MAX} bytes, and this one has {}", path.len()))
        }
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err(format!("\"{text}\" is not a socket: write unix:PATH")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_named_by_their_kind() {
        assert_eq!(parse_socket("unix:/run/a"), Ok("/run/a".into()));
        for wrong in ["/run/a", "unix:", "tcp:10809"] {
            assert!(parse_socket(wrong).is_err(), "{wrong}");
        }
    }
}
