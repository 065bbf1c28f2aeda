//! `bifolio swap install` and `uninstall`: systemd units.

use super::on::BACKING;
use super::{line, take_off};
use crate::exit::{Code, Failure};
use bifolio_paging::swap::{OffOptions, Place};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: &str = "/etc/systemd/system";
const SWAP: &str = "bifolio-swap.service";
const SLEEP: &str = "bifolio-swap-sleep.service";

/// Choices for `swap install`.
#[derive(Debug, ClapArgs)]
pub struct InstallArgs {
    /// Where units are kept.
    #[arg(long, value_name = "FOLDER", default_value = UNITS)]
    pub units: PathBuf,
    /// What `swap on` is given, after `--`; --auto, if nothing.
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Choices for `swap uninstall`.
#[derive(Debug, ClapArgs)]
pub struct UninstallArgs {
    /// Where units are kept.
    #[arg(long, value_name = "FOLDER", default_value = UNITS)]
    pub units: PathBuf,
}

/// Writes and enables the units.
pub fn install(args: &InstallArgs) -> Result<(), Failure> {
    let failed =
        |what: &Path, error: std::io::Error| Failure::failed(format!("{}: writing it failed: {error}", what.display()));
    let program = std::env::current_exe().map_err(|error| failed(Path::new("/proc/self/exe"), error))?;
    let auto = ["--auto".to_owned()];
    let options = if args.options.is_empty() { &auto[..] } else { &args.options[..] };
    check_options(options)?;
    for (name, text) in [(SWAP, swap_unit(&program, options)), (SLEEP, sleep_unit(&program))] {
        let path = args.units.join(name);
        std::fs::write(&path, text).map_err(|error| failed(&path, error))?;
        line(&path.display().to_string())?;
    }
    if is_managed(&args.units) {
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", SWAP, SLEEP])?;
        return line("enabled; `systemctl start bifolio-swap` switches swap on now");
    }
    line("systemd does not run here, or reads units elsewhere: nothing was enabled")
}

/// Switches everything off and removes what was made.
pub fn uninstall(args: &UninstallArgs, place: &Place) -> Result<(), Failure> {
    for instance in place.instances()? {
        take_off(place, &OffOptions { backing: Some(instance.record.backing), ..OffOptions::default() })?;
    }
    let units = [SWAP, SLEEP].map(|name| args.units.join(name));
    if is_managed(&args.units) && units.iter().any(|unit| unit.exists()) {
        systemctl(&["disable", "--now", SWAP, SLEEP])?;
    }
    for unit in &units {
        remove(unit, std::fs::remove_file(unit))?;
    }
    if is_managed(&args.units) {
        systemctl(&["daemon-reload"])?;
    }
    remove(Path::new(BACKING), std::fs::remove_file(BACKING))?;
    // Whatever else is in them is not of this command.
    let _ = Path::new(BACKING).parent().map(std::fs::remove_dir);
    remove(place.path(), std::fs::remove_dir_all(place.path()))?;
    let _ = place.path().parent().map(std::fs::remove_dir);
    line("nothing of it is left")
}

fn remove(path: &Path, done: std::io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("{}: removing it failed: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

fn is_managed(units: &Path) -> bool {
    units == Path::new(UNITS) && Path::new("/run/systemd/system").exists()
}

fn systemctl(args: &[&str]) -> Result<(), Failure> {
    let done = Command::new("systemctl").arg("--quiet").args(args).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::failed(format!("systemctl {} ended {status}", args.join(" ")))),
        Err(error) => Err(Failure::failed(format!("starting systemctl failed: {error}"))),
    }
}

/// Refuses options that would not survive the way through a unit.
fn check_options(options: &[String]) -> Result<(), Failure> {
    let bad = options.iter().find(|option| option.chars().any(char::is_control));
    bad.map_or(Ok(()), |option| {
        Err(Failure::new(Code::Usage, format!("{option:?} cannot be an option in a unit, which is lines of text")))
    })
}

/// A word as systemd reads it: in quotes, with its escapes, specifiers and variables as they are.
fn quoted(word: &str) -> String {
    let plain = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{plain}\"")
}

fn swap_unit(program: &Path, options: &[String]) -> String {
    let program = quoted(&program.display().to_string());
    let options: Vec<String> = options.iter().map(|option| quoted(option)).collect();
    format!(
        "\
# Written by `bifolio swap install`; `bifolio swap uninstall` removes it.
[Unit]
Description=Swap space with GPU memory in front of a file
After=local-fs.target nvidia-persistenced.service
Wants=nvidia-persistenced.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} swap on {options}
ExecStop={program} swap off
# Everything on it comes back into memory first, which takes as long as it takes.
TimeoutStopSec=infinity
# What serves swap must never wait for it, and is the last to be ended when memory runs out.
LimitMEMLOCK=infinity
MemorySwapMax=0
OOMScoreAdjust=-1000
CPUWeight=1000
IOWeight=1000
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_RESOURCE CAP_IPC_LOCK CAP_DAC_OVERRIDE CAP_FOWNER CAP_MKNOD
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
UMask=0077

[Install]
WantedBy=multi-user.target
",
        options = options.join(" ")
    )
}

fn sleep_unit(program: &Path) -> String {
    let program = quoted(&program.display().to_string());
    format!(
        "\
# Written by `bifolio swap install`; `bifolio swap uninstall` removes it.
[Unit]
Description=No device memory is held by swap while the system sleeps
Before=sleep.target nvidia-suspend.service nvidia-hibernate.service
StopWhenUnneeded=yes

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} swap suspend
ExecStop={program} swap resume

[Install]
WantedBy=sleep.target
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_systemd_as_they_are() {
        assert_eq!(quoted(r#"a "b" $c %d \e"#), r#""a \"b\" $$c %%d \\e""#);
        assert!(check_options(&["a\nExecStart=b".to_owned()]).is_err());
        let unit = swap_unit(Path::new("/usr/bin/bifolio"), &["--backing".to_owned(), "/a b".to_owned()]);
        assert!(unit.contains("ExecStart=\"/usr/bin/bifolio\" swap on \"--backing\" \"/a b\"\n"), "{unit}");
        assert!(unit.contains("ExecStop=\"/usr/bin/bifolio\" swap off\n"), "{unit}");
    }
}
