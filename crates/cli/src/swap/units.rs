//! `bifolio swap install` and `uninstall`: systemd units.

use super::on::BACKING;
use super::{line, take_off};
use crate::exit::Failure;
use crate::units::{self, Manager, SYSTEM_UNITS, remove};
use bifolio_paging::swap::{OffOptions, Place};
use clap::Args as ClapArgs;
use std::path::{Path, PathBuf};

const SWAP: &str = "bifolio-swap.service";
const SLEEP: &str = "bifolio-swap-sleep.service";

/// Choices for `swap install`.
#[derive(Debug, ClapArgs)]
pub struct InstallArgs {
    /// Where units are kept.
    #[arg(long, value_name = "FOLDER", default_value = SYSTEM_UNITS)]
    pub units: PathBuf,
    /// What `swap on` is given, after `--`; --auto, if nothing.
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

/// Choices for `swap uninstall`.
#[derive(Debug, ClapArgs)]
pub struct UninstallArgs {
    /// Where units are kept.
    #[arg(long, value_name = "FOLDER", default_value = SYSTEM_UNITS)]
    pub units: PathBuf,
}

/// Writes and enables the units.
pub fn install(args: &InstallArgs) -> Result<(), Failure> {
    let auto = ["--auto".to_owned()];
    let options = units::options(if args.options.is_empty() { &auto } else { &args.options })?;
    let program = units::program()?;
    let files = [(SWAP, swap_unit(&program, &options)), (SLEEP, sleep_unit(&program))];
    let how = "enabled; `systemctl start bifolio-swap` switches swap on now";
    Manager::System.install(&args.units, &files, &[SWAP, SLEEP], how)
}

/// Switches everything off and removes what was made.
pub fn uninstall(args: &UninstallArgs, place: &Place) -> Result<(), Failure> {
    for instance in place.instances()? {
        take_off(place, &OffOptions { backing: Some(instance.record.backing), ..OffOptions::default() })?;
    }
    Manager::System.uninstall(&args.units, &[SWAP, SLEEP])?;
    remove(Path::new(BACKING), std::fs::remove_file(BACKING))?;
    // Whatever else is in them is not of this command.
    let _ = Path::new(BACKING).parent().map(std::fs::remove_dir);
    remove(place.path(), std::fs::remove_dir_all(place.path()))?;
    let _ = place.path().parent().map(std::fs::remove_dir);
    line("nothing of it is left")
}

fn swap_unit(program: &str, options: &str) -> String {
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
"
    )
}

fn sleep_unit(program: &str) -> String {
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
    fn it_is_switched_on_and_off_by_the_unit() {
        let unit = swap_unit("\"/usr/bin/bifolio\"", "\"--backing\" \"/a b\"");
        assert!(unit.contains("ExecStart=\"/usr/bin/bifolio\" swap on \"--backing\" \"/a b\"\n"), "{unit}");
        assert!(unit.contains("ExecStop=\"/usr/bin/bifolio\" swap off\n"), "{unit}");
    }
}
