//! `bifolio stripe`: making striped sets, and looking at them.

use crate::exit::{Code, Failure};
use crate::global::Global;
use crate::output;
use bifolio_io::stripe::create;
use bifolio_io::{ErrorKind, OpenFile, size};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// What to do with a set.
#[derive(Debug, Subcommand)]
pub enum StripeCommand {
    /// Create the members of a set, all of their blocks allocated, and a descriptor that names them.
    Create(CreateArgs),
    /// Open a set, check its members, and print its layout.
    Info(InfoArgs),
}

/// Choices for `stripe create`.
#[derive(Debug, ClapArgs)]
pub struct CreateArgs {
    /// The descriptor to write, such as set.toml; the set is then called stripe:set.toml.
    pub descriptor: PathBuf,
    /// The members, in order; files that do not exist yet, best on a drive each.
    #[arg(required = true)]
    pub members: Vec<PathBuf>,
    /// Bytes that lie on one member before the next has its turn.
    #[arg(long, default_value = "512K", value_parser = size::parse, value_name = "SIZE")]
    pub chunk: u64,
    /// Bytes of the whole set.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    pub size: u64,
}

/// Choices for `stripe info`.
#[derive(Debug, ClapArgs)]
pub struct InfoArgs {
    /// stripe:DESCRIPTOR.toml, or stripe:CHUNK:FILE,FILE,...
    pub set: String,
}

#[derive(Debug, Serialize)]
struct Info {
    name: String,
    bytes: u64,
    chunk_bytes: u64,
    members: Vec<Member>,
}

#[derive(Debug, Serialize)]
struct Member {
    path: PathBuf,
    bytes: u64,
}

/// Creates or describes a set.
pub fn run(global: &Global, command: &StripeCommand) -> Result<(), Failure> {
    match command {
        StripeCommand::Create(options) => {
            let name = create(&options.descriptor, options.chunk, options.size, &options.members);
            let name = name.map_err(|error| match error.kind() {
                // There is no set yet that could be damaged: it is what was asked for that cannot be.
                ErrorKind::BadStripe => Failure::new(Code::Usage, error),
                _ => error.into(),
            })?;
            print(global, &name)
        }
        StripeCommand::Info(options) => print(global, &options.set),
    }
}

fn print(global: &Global, name: &str) -> Result<(), Failure> {
    let file = OpenFile::open(name)?;
    let layout = file.layout().ok_or_else(|| {
        Failure::failed(format!("{name}: this is a plain file; name a set as stripe:DESCRIPTOR.toml"))
    })?;
    let member = |member: &std::sync::Arc<bifolio_io::PlainFile>| -> Result<Member, Failure> {
        Ok(Member { path: member.path().to_owned(), bytes: member.size()? })
    };
    let info = Info {
        name: name.to_owned(),
        bytes: file.size()?,
        chunk_bytes: layout.chunk_bytes(),
        members: file.members().iter().map(member).collect::<Result<_, _>>()?,
    };
    global.answer(&info, || describe(&info))
}

fn describe(info: &Info) -> String {
    let mut rows = vec![["member", "bytes", "file"].map(str::to_owned).to_vec()];
    rows.extend(
        info.members.iter().enumerate().map(|(number, member)| {
            vec![number.to_string(), member.bytes.to_string(), member.path.display().to_string()]
        }),
    );
    let (bytes, chunk) = (size::human(info.bytes), size::exact(info.chunk_bytes));
    format!("{}: {bytes} in chunks of {chunk}\n{}", output::printable(&info.name), output::columns(&rows, &[2]))
}
