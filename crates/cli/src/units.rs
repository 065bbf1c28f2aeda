//! systemd units: written, enabled, and taken away again.

use crate::exit::{Code, Failure};
use crate::output::text as line;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which systemd reads the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    /// The system's.
    System,
    /// That of the user.
    User,
}

/// Where units of the system are kept.
pub const SYSTEM_UNITS: &str = "/etc/systemd/system";

impl Manager {
    /// Whose units this process may write.
    pub fn own() -> Self {
        // SAFETY: asks for a number.
        if unsafe { libc::geteuid() } == 0 { Self::System } else { Self::User }
    }

    /// The folder that it reads.
    pub fn folder(self) -> Result<PathBuf, Failure> {
        let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = match self {
            Self::System => return Ok(SYSTEM_UNITS.into()),
            Self::User => absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config"))),
        };
        let config = config.ok_or_else(|| Failure::new(Code::Usage, "HOME names no folder: say where by --units"))?;
        Ok(config.join("systemd/user"))
    }

    /// Whether it runs and reads units from this folder.
    fn reads(self, units: &Path) -> bool {
        let runs = match self {
            Self::System => Path::new("/run/systemd/system").exists(),
            Self::User => {
                std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|folder| Path::new(&folder).join("systemd").exists())
            }
        };
        runs && self.folder().is_ok_and(|folder| folder == units)
    }

    fn systemctl(self, args: &[&str], names: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new("systemctl");
        if self == Self::User {
            command.arg("--user");
        }
        match command.arg("--quiet").args(args).args(names).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::failed(format!("systemctl {} ended {status}", args.join(" ")))),
            Err(error) => Err(Failure::failed(format!("starting systemctl failed: {error}"))),
        }
    }

    /// Writes units, and enables some of them. What is to be told when they are enabled.
    pub fn install(self, units: &Path, files: &[(&str, String)], enabled: &[&str], how: &str) -> Result<(), Failure> {
        if self == Self::User && self.folder().is_ok_and(|folder| folder == units) {
            std::fs::create_dir_all(units).map_err(|error| failed(units, &error))?;
        }
        for (name, text) in files {
            let path = units.join(name);
            std::fs::write(&path, text).map_err(|error| failed(&path, &error))?;
            line(&path.display().to_string())?;
        }
        if !self.reads(units) {
            return line("systemd does not run here, or reads units elsewhere: nothing was enabled");
        }
        self.systemctl(&["daemon-reload"], &[])?;
        self.systemctl(&["enable"], enabled)?;
        line(how)
    }

    /// Ends and removes them.
    pub fn uninstall(self, units: &Path, names: &[&str]) -> Result<(), Failure> {
        let paths: Vec<PathBuf> = names.iter().map(|name| units.join(name)).collect();
        let is_there = paths.iter().any(|path| path.exists());
        if self.reads(units) && is_there {
            self.systemctl(&["disable", "--now"], names)?;
        }
        for path in &paths {
            remove(path, std::fs::remove_file(path))?;
        }
        if self.reads(units) { self.systemctl(&["daemon-reload"], &[]) } else { Ok(()) }
    }
}

fn failed(what: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: writing it failed: {error}", what.display()))
}

/// What is not there is removed.
pub fn remove(path: &Path, done: std::io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("{}: removing it failed: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// This program, as a unit names it.
pub fn program() -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(|error| failed(Path::new("/proc/self/exe"), &error))?;
    Ok(quoted(&program.display().to_string()))
}

/// Options as a unit names them.
///
/// Those that would not survive the way through a unit are refused.
pub fn options(options: &[String]) -> Result<String, Failure> {
    if let Some(option) = options.iter().find(|option| option.chars().any(char::is_control)) {
        let detail = format!("{option:?} cannot be an option in a unit, which is lines of text");
        return Err(Failure::new(Code::Usage, detail));
    }
    let words: Vec<String> = options.iter().map(|option| quoted(option)).collect();
    Ok(words.join(" "))
}

/// A word as systemd reads it: in quotes, with its escapes, specifiers and variables as they are.
pub fn quoted(word: &str) -> String {
    let plain = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{plain}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_systemd_as_they_are() {
        assert_eq!(quoted(r#"a "b" $c %d \e"#), r#""a \"b\" $$c %%d \\e""#);
        assert!(options(&["a\nExecStart=b".to_owned()]).is_err());
        assert_eq!(options(&["--backing".to_owned(), "/a b".to_owned()]).unwrap(), "\"--backing\" \"/a b\"");
    }
}
