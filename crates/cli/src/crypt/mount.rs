//! `bifolio crypt mount`.
//!
//! As gocryptfs, it returns when the directory is mounted, and a process in the background serves it. That process
//! gets the master key on its standard input. Errors until then are printed, and later ones go to the system's log.

use super::key::{Given, KeyArgs, hexadecimal};
use crate::background;
use crate::exit::{Code, Failure, eprintln_quietly};
use crate::signals;
use bifolio_crypt::{CipherDir, MountOptions};
use bifolio_io::Cancel;
use clap::Args as ClapArgs;
use std::path::PathBuf;
use std::sync::Arc;

/// Choices for `crypt mount`.
#[derive(Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools, reason = "options are independent of each other")]
#[allow(clippy::doc_markdown, reason = "these comments are shown as help")]
pub struct MountArgs {
    /// The encrypted directory.
    pub cipherdir: PathBuf,
    /// An empty directory to mount it on.
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
    /// Stay in the foreground.
    #[arg(long, short = 'f', alias = "f")]
    pub fg: bool,
    /// Mount for reading only.
    #[arg(long)]
    pub ro: bool,
    /// Let other users in, as the files' permissions say; user_allow_other in /etc/fuse.conf has to permit it.
    #[arg(long = "allow_other")]
    pub allow_other: bool,
    /// Let device files work as such.
    #[arg(long, conflicts_with = "nodev")]
    pub dev: bool,
    /// Device files do not work as such, as without this option.
    #[arg(long)]
    pub nodev: bool,
    /// Let executables run as another user where their mode says so.
    #[arg(long, conflicts_with = "nosuid")]
    pub suid: bool,
    /// Executables never run as another user, as without this option.
    #[arg(long)]
    pub nosuid: bool,
    /// Nothing can be executed.
    #[arg(long)]
    pub noexec: bool,
    /// Mount also where there are files, which are not seen meanwhile.
    #[arg(long)]
    pub nonempty: bool,
    /// What mount shows as the source, instead of the encrypted directory.
    #[arg(long, value_name = "NAME")]
    pub fsname: Option<String>,
    /// These options as mount(8) has them, separated by commas: ro, rw, allow_other, dev, nodev, suid, nosuid, exec,
    /// noexec, nonempty, fsname=NAME.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Started by another process, which waits until it is mounted.
    #[arg(long, hide = true)]
    pub background: bool,
}

/// Mounts, and serves it here or in the background.
pub fn run(options: &MountArgs, cancel: &Cancel) -> Result<(), Failure> {
    let chosen = mount_options(options)?;
    if options.fg || options.background {
        serve(options, &chosen, cancel)
    } else {
        start_in_background(options, cancel)
    }
}

fn mount_options(args: &MountArgs) -> Result<MountOptions, Failure> {
    let mut options = MountOptions {
        is_read_only: args.ro,
        allows_other: args.allow_other,
        allows_devices: args.dev,
        allows_suid: args.suid,
        allows_exec: !args.noexec,
        allows_nonempty: args.nonempty,
        source: args.fsname.clone(),
        warn: if args.background {
            Arc::new(background::log)
        } else {
            Arc::new(|text| eprintln_quietly(&format!("bifolio: {text}")))
        },
    };
    for option in &args.options {
        match option.as_str() {
            "ro" => options.is_read_only = true,
            "rw" => options.is_read_only = false,
            "allow_other" => options.allows_other = true,
            "dev" => options.allows_devices = true,
            "nodev" => options.allows_devices = false,
            "suid" => options.allows_suid = true,
            "nosuid" => options.allows_suid = false,
            "exec" => options.allows_exec = true,
            "noexec" => options.allows_exec = false,
            "nonempty" => options.allows_nonempty = true,
            other => match other.strip_prefix("fsname=") {
                Some(name) => options.source = Some(name.to_owned()),
                None => {
                    return Err(Failure::new(Code::Usage, format!("-o {other}: unknown option; see --help")));
                }
            },
        }
    }
    Ok(options)
}

fn serve(args: &MountArgs, options: &MountOptions, cancel: &Cancel) -> Result<(), Failure> {
    let dir = if args.background {
        // Whoever started this has tried the key.
        CipherDir::open_untried(&args.cipherdir, &args.key.get()?.as_key())?
    } else {
        args.key.open(&args.cipherdir, cancel)?
    };
    let mounted = bifolio_crypt::mount(&dir, &args.mountpoint, options)?;
    drop(dir);
    if args.background {
        background::leave_terminal()?;
    }
    // A second signal ends the process at once, whatever is still open.
    Ok(mounted.serve_until(&|| cancel.is_cancelled(), &mut || {}, &|place| {
        let place = place.display();
        eprintln_quietly(&format!(
            "bifolio: {place}: files are still open; it is unmounted, and served until they are closed"
        ));
    })?)
}

fn start_in_background(args: &MountArgs, cancel: &Cancel) -> Result<(), Failure> {
    let given = args.key.get()?;
    let cipherdir = args.cipherdir.clone();
    // Checked here, where its error belongs to the one who typed it.
    let check = move || match given {
        Given::Passphrase(passphrase) => CipherDir::master_key(&cipherdir, &passphrase),
        Given::Master(ref master) | Given::MasterOf(ref master, _) => {
            CipherDir::open(&cipherdir, &given.as_key())?;
            Ok(master.clone())
        }
    };
    let master = signals::until_interrupted(cancel, check)??;
    let mut command = background::program()?;
    command.args(["crypt", "mount", "--background", "--masterkey", "stdin"]);
    let flags = [
        (args.key.plaintextnames, "--plaintextnames"),
        (args.ro, "--ro"),
        (args.allow_other, "--allow_other"),
        (args.dev, "--dev"),
        (args.suid, "--suid"),
        (args.noexec, "--noexec"),
        (args.nonempty, "--nonempty"),
    ];
    command.args(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name));
    if let Some(name) = &args.fsname {
        command.arg("--fsname").arg(name);
    }
    for option in &args.options {
        command.arg("-o").arg(option);
    }
    command.arg("--").arg(&args.cipherdir).arg(&args.mountpoint);
    background::start(command, hexadecimal(&master).as_bytes())
}
