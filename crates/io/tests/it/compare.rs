//! The scripts of `bench/compare` work: their own tests run, on the embedded device and with small files.

use bifolio_testing::{require, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo puts the programs of this build: the folder above that of the test programs.
fn target_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().to_owned()
}

#[test]
fn the_comparison_scripts_measure_and_check() {
    let python = std::env::var_os("BIFOLIO_PYTHON").unwrap_or_else(|| "python3".into());
    let version = "import sys; sys.exit(sys.version_info < (3, 10))";
    let usable = Command::new(&python).args(["-c", version]).status().is_ok_and(|status| status.success());
    if !usable {
        return require(format_args!("{} is missing, or older than Python 3.10", python.display()));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/compare/test_compare.py");
    let output = Command::new(python)
        .arg(script)
        .env("BIFOLIO_COMPARE_TARGET", target_folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    // What was skipped there is said here, too.
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().filter_map(|line| line.strip_prefix("skipped: ")).for_each(skip);
    print!("{said}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
