//! Keys and passphrases, from files, from standard input and from people.

use crate::exit::{Code, Failure};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;
use zeroize::Zeroizing;

/// As cryptsetup's limit on key files.
const KEY_BYTES_MAX: u64 = 8 << 20;

/// All bytes of a key file, as `cryptsetup --key-file` takes them; `-` is standard input. Without a file whoever
/// sits at the terminal is asked.
pub fn key(file: Option<&Path>, question: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    match file {
        Some(file) => read(file, false),
        None => ask(question),
    }
}

/// The first line of a file, without its end, as `gocryptfs -passfile` takes it; of standard input the next line.
pub fn first_line(file: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let bytes = read(file, true)?;
    if bytes.is_empty() && file == Path::new("-") {
        return Err(Failure::failed("standard input ended before a line with the secret"));
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(Zeroizing::new(line.to_vec()))
}

/// Asks for a passphrase, which is not shown. Of standard input that is no terminal the next line is read, so that the
/// lines of one pipe answer one question each.
pub fn ask(question: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    if !std::io::stdin().is_terminal() {
        return first_line(Path::new("-"));
    }
    let answer = rpassword::prompt_password(format!("{question}: "))
        .map_err(|error| Failure::failed(format!("reading the passphrase from the terminal failed: {error}")))?;
    Ok(Zeroizing::new(answer.into_bytes()))
}

/// Asks twice.
pub fn ask_twice(question: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let first = ask(question)?;
    if std::io::stdin().is_terminal() && *ask("The same again")? != *first {
        return Err(Failure::failed("the two passphrases differ; nothing was done"));
    }
    Ok(first)
}

/// All bytes, or those up to the end of a line at least.
fn read(file: &Path, only_a_line: bool) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let failed = |error| Failure::about(Code::Failed, file.display(), format!("reading the key failed: {error}"));
    // Not by the library's standard input, whose buffer would keep a copy.
    let mut source = if file == Path::new("-") {
        std::io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(failed)?
    } else {
        File::open(file).map_err(failed)?
    };
    // What is behind the line in a pipe is for who reads next, and a pipe takes nothing back. So what cannot be read
    // again from its beginning is read byte by byte, and nothing more of it than the line is ever here.
    let is_shared = file == Path::new("-") || !source.metadata().map_err(failed)?.is_file();
    let at_once = if only_a_line && is_shared { 1 } else { usize::MAX };
    // Grown by hand: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(vec![0; 4096]);
    let mut len = 0;
    loop {
        if len == bytes.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * len]);
            larger[..len].copy_from_slice(&bytes);
            bytes = larger;
        }
        let end = len.saturating_add(at_once).min(bytes.len());
        match source.read(&mut bytes[len..end]) {
            Ok(0) => break,
            Ok(read) => {
                len += read;
                if only_a_line && bytes[len - read..len].contains(&b'\n') {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        if len as u64 > KEY_BYTES_MAX {
            let detail = format!("a key has at most {KEY_BYTES_MAX} bytes; is this the right file?");
            return Err(Failure::about(Code::Failed, file.display(), detail));
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}
