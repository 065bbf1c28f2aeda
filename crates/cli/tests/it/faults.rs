//! Bad input and faults: a sentence with file, offset and device, the right exit code, and nothing
//! on stdout that could be taken for success.

use crate::support::{Place, sentence, signal, until_at_work};
use std::os::unix::process::CommandExt;

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
}

#[test]
fn a_missing_file() {
    let place = Place::new();
    says(&sentence(&place.run(&["read", "no/such/file"]), 1), &["no/such/file", "host:0", "no such file"]);
    says(&sentence(&place.run(&["bench", "read", "no/such/file"]), 1), &["no/such/file", "no such file"]);
    let absent = sentence(&place.run(&["calibrate", "no/such/folder"]), 1);
    says(&absent, &["no/such/folder", "create the folder"]);
    assert!(!absent.contains("host:0"), "it is no matter of the device: {absent}");
}

#[test]
fn what_has_no_offsets() {
    let place = Place::new();
    let folder = place.dir.path().to_str().unwrap();
    says(&sentence(&place.run(&["read", folder]), 7), &[folder, "is a directory", "host:0"]);
    says(&sentence(&place.run(&["read", "/dev/null"]), 7), &["/dev/null", "character device"]);
    let pipe = place.dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    says(&sentence(&place.run(&["read", pipe.to_str().unwrap()]), 7), &["is a pipe"]);
}

#[test]
fn no_permission() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let (file, _) = place.file("secret", 1000);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&file).is_err() {
        says(&sentence(&place.run(&["read", file.to_str().unwrap()]), 1), &["secret", "permissions", "host:0"]);
        return;
    }
    // Root may read everything: nobody tries, from a folder that nobody can reach.
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (program, secret) = (open.path().join("bifolio"), open.path().join("secret"));
    std::fs::copy(env!("CARGO_BIN_EXE_bifolio"), &program).unwrap();
    std::fs::write(&secret, b"x").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = std::process::Command::new(&program);
    command.args(["read", "--device", "host"]).arg(&secret).current_dir(open.path()).uid(65_534).gid(65_534);
    match command.output() {
        Ok(output) => says(&sentence(&output, 1), &["secret", "permissions", "host:0"]),
        Err(error) => bifolio_testing::skip(format_args!("nobody cannot run programs here: {error}")),
    }
}

#[test]
fn ranges_that_do_not_exist() {
    let place = Place::new();
    let (file, _) = place.file("data", 1000);
    let file = file.to_str().unwrap();
    says(
        &sentence(&place.run(&["read", file, "--offset", "1001"]), 1),
        &["data", "offset 1001", "beyond the end", "host:0"],
    );
    let huge = (u64::MAX - 10).to_string();
    says(&sentence(&place.run(&["read", file, "--offset", "11", "--length", &huge]), 1), &["offset 11", "overflows"]);
    says(&sentence(&place.run(&["read", file, "--offset", "1", "--length", &i64::MAX.to_string()]), 1), &["overflows"]);
    says(&sentence(&place.run(&["read", file, "--length", "99999999T"]), 2), &["64 bits"]);
    says(&sentence(&place.run(&["read", file, "--length", "1.5G"]), 2), &["not a size"]);
    says(&sentence(&place.run(&["read", file, "--offset=-1"]), 2), &["not a size"]);
}

#[test]
fn a_device_without_enough_memory() {
    let place = Place::new();
    let (file, _) = place.file("data", 3_000_000);
    let small = |args: &[&str]| place.command(args).env("BIFOLIO_HOST_MEMORY", "1M").output().unwrap();
    let text = sentence(&small(&["read", file.to_str().unwrap(), "--offset", "5"]), 1);
    says(&text, &["data", "offset 5", "host:0", "memory", "2999995"]);
    says(&sentence(&small(&["bench", "read", file.to_str().unwrap()]), 1), &["data", "host:0", "memory"]);
}

#[test]
fn unknown_devices_and_engines() {
    let place = Place::new();
    let (file, _) = place.file("data", 1000);
    let file = file.to_str().unwrap();
    says(&sentence(&place.run(&["read", file, "--device", "gpu:0"]), 2), &["gpu:0", "opencl:N"]);
    says(&sentence(&place.run(&["read", file, "--engine", "fast"]), 2), &["fast", "mapped"]);
    says(&sentence(&place.run(&["read", file, "--device", "cuda:99"]), 3), &["cuda:99"]);
    says(&sentence(&place.run(&["read", file, "--device", "host:99"]), 3), &["host:99"]);
    says(
        &sentence(&place.run(&["read", file, "--engine", "p2p", "--offset", "7"]), 3),
        &["data", "offset 7", "p2p", "host:0"],
    );
    says(&sentence(&place.run(&["bench", "read", file, "--engines", "p2p"]), 3), &["data", "p2p"]);
    says(&sentence(&place.run(&["read"]), 2), &["FILE"]);
    says(&sentence(&place.run(&["raed", file]), 2), &["raed"]);
}

#[test]
fn a_broken_driver_library_is_named_and_nothing_else_breaks() {
    let place = Place::new();
    let broken = place.dir.path().join("libcuda.so.1");
    std::fs::write(&broken, "this is not a library").unwrap();
    let with = |args: &[&str]| place.command(args).env("BIFOLIO_CUDA_LIBRARY", &broken).output().unwrap();
    let listing = with(&["devices"]);
    let text = String::from_utf8(listing.stdout).unwrap();
    assert!(listing.status.success());
    says(&text, &["libcuda.so.1", "host:0"]);
    let (file, _) = place.file("data", 1000);
    says(&sentence(&with(&["read", file.to_str().unwrap(), "--device", "cuda:0"]), 3), &["cuda:0", "libcuda.so.1"]);
    assert!(with(&["read", file.to_str().unwrap(), "--verify"]).status.success());
}

#[test]
fn damaged_and_foreign_profiles() {
    let place = Place::new();
    let (file, _) = place.file("data", 100_000);
    let file = file.to_str().unwrap();
    let stored = place.stored_profile();
    std::fs::create_dir_all(stored.parent().unwrap()).unwrap();
    std::fs::write(&stored, "{ not json").unwrap();
    says(&sentence(&place.run(&["read", file]), 7), &["damaged", "bifolio calibrate", "host:0"]);
    assert!(place.run(&["read", file, "--profile", "none"]).status.success());

    let costs = serde_json::to_value(bifolio_io::Costs::default()).unwrap();
    let profile = |device: &str, costs: serde_json::Value| {
        let profile = serde_json::json!({
            "version": bifolio_io::profile::VERSION, "device": device, "file_system": "type 1 on 2:3", "measured_at": 0,
            "costs": costs, "curves": []
        });
        std::fs::write(&stored, profile.to_string()).unwrap();
    };
    let device = bifolio_device::open("host".parse().unwrap()).unwrap().info().identity.clone();
    profile("another GPU", costs.clone());
    says(&sentence(&place.run(&["read", file]), 7), &["belongs to another device"]);
    profile(&device, costs);
    says(&sentence(&place.run(&["read", file]), 7), &["belongs to another file system"]);
    says(&sentence(&place.run(&["read", file, "--profile", "no-profile.json"]), 1), &["no-profile.json"]);
}

#[test]
fn an_interrupted_read_says_so() {
    let place = Place::new();
    let (file, _) = place.file("data", 50_000_000);
    let file = file.to_str().unwrap();
    let mut command = place.command(&["read", file, "--repeat", "1000000", "--engine", "cached"]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    until_at_work(child.id(), 0.3);
    signal(child.id(), "INT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_closed_pipe_is_not_a_panic() {
    let place = Place::new();
    let mut child = place
        .command(&["devices"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_kernels_of_every_device_are_right_or_it_is_said_why_they_were_not_tested() {
    let place = Place::new();
    let output = place.run(&["devices", "--test", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let host = listed.as_array().unwrap().iter().find(|report| report["backend"] == "host").unwrap();
    assert_eq!(host["tests"][0]["device"], "host:0");
}

#[test]
fn the_exit_codes_are_in_the_help() {
    let place = Place::new();
    for args in [&["--help"][..], &["read", "--help"], &["bench", "read", "--help"]] {
        let output = place.run(args);
        assert!(output.status.success());
        says(&String::from_utf8(output.stdout).unwrap(), &["Exit codes", "verification failed", "130"]);
    }
}
