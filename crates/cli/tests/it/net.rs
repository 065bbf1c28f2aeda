//! `bifolio net`: packet configurations, run and refused, with the exit codes and the words of Click.

use crate::support::Place;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

/// The exit code, what was printed, and what was said.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn net(args: &[&str]) -> (Option<i32>, String, String) {
    told(&Place::new().run(&[&["net"], args].concat()))
}

/// A router that stops by itself after three packets.
const THREE: &str = "InfiniteSource(DATA \"hello\", LIMIT 3, STOP true) -> c :: Counter -> Discard";

#[test]
fn a_configuration_runs_and_its_handlers_are_read() {
    let three = (Some(0), "3\n".to_owned(), String::new());
    assert_eq!(net(&["-e", THREE, "-h", "c.count"]), three);
    assert_eq!(net(&["click", "-e", THREE, "-h", "c.count"]), three);
    let (_, both, _) = net(&["-e", THREE, "-h", "c.count", "-h", "c.byte_count"]);
    assert_eq!(both, "c.count:\n3\n\nc.byte_count:\n15\n\n");
    assert_eq!(net(&["-e", THREE, "-x", "c.count"]).0, Some(3));
    assert_eq!(net(&["-q", "-e", THREE, "-h", "c.count"]).1, "0\n");

    let place = Place::new();
    let file = place.dir.path().join("three.click");
    std::fs::write(&file, THREE.replace('3', "$N")).unwrap();
    assert_eq!(told(&place.run(&["net", file.to_str().unwrap(), "N=7", "-h", "c.count"])).1, "7\n");

    let mut command = place.command(&["net", "-h", "c.count"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(THREE.as_bytes()).unwrap();
    assert_eq!(told(&child.wait_with_output().unwrap()), three);
}

#[test]
fn the_tools_are_there_by_name() {
    let (code, flat, _) =
        net(&["click-flatten", "-e", "elementclass A { input -> Null -> output } Idle -> A -> Discard"]);
    assert!(code == Some(0) && flat.contains(":: Null") && !flat.contains("elementclass"), "{flat}");
    assert_eq!(net(&["click-buildtool", "provides", "NoSuchClass"]), (Some(1), String::new(), String::new()));
}

#[test]
fn what_is_not_there_is_said_in_one_line() {
    let (code, out, error) = net(&["nowhere.click"]);
    assert_eq!((code, out, error.as_str()), (Some(1), String::new(), "nowhere.click: No such file or directory\n"));
    let (code, _, error) = net(&["-q", "-e", THREE, "-h", "d.count"]);
    assert_eq!((code, error.as_str()), (Some(1), "no element 'd'\n"));
    let (code, _, error) = net(&["--no-such-option"]);
    assert!(code == Some(1) && error.starts_with("click: unrecognized option '--no-such-option'\n"), "{error}");
}

#[test]
fn all_that_is_wrong_is_told_and_nothing_starts() {
    let place = Place::new();
    let left = place.dir.path().join("left.pcap");
    let config = format!(
        "InfiniteSource(LIMIT 1, STOP true)\n -> ToDump({})\n -> n :: Nothing(1) -> Discard;\nx :: Idle(1",
        left.display()
    );
    let (code, out, error) = told(&place.run(&["net", "-e", &config]));
    assert_eq!((code, out), (Some(1), String::new()), "{error}");
    assert!(error.contains("config:4: ") && error.contains("config:3: unknown element class 'Nothing'"), "{error}");

    let config = config.replace("n :: Nothing(1)", "Strip(x)").replace("x :: Idle(1", "");
    let (code, _, error) = told(&place.run(&["net", "-e", &config]));
    assert!(code == Some(1) && error.contains("config:3: While configuring 'Strip@3 :: Strip':\n"), "{error}");
    assert!(error.ends_with("Router could not be initialized!\n"), "{error}");
    assert!(!left.exists(), "a router that was refused has written");
}

/// A capture without packets.
fn empty_capture(path: &Path) {
    let header = [0xa1b2_c3d4_u32, 2 << 16 | 4, 0, 0, 65_535, 1];
    std::fs::write(path, header.map(u32::to_be_bytes).concat()).unwrap();
}

#[test]
fn an_example_runs_on_captures_in_simulated_time() {
    let place = Place::new();
    let file = |name: &str| -> PathBuf { place.dir.path().join(name) };
    let values = ["in0", "in1", "out0", "out1"].map(|name| format!("{}={}", name.to_uppercase(), file(name).display()));
    for name in ["in0", "in1"] {
        empty_capture(&file(name));
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/net/ip-router-pcap.click");
    let mut args = vec!["net", "--simtime", example.to_str().unwrap()];
    args.extend(values.iter().map(String::as_str));
    assert_eq!(told(&place.run(&args)), (Some(0), String::new(), String::new()));
    for name in ["out0", "out1"] {
        assert_eq!(std::fs::read(file(name)).unwrap().len(), 24, "a header");
    }
    std::fs::remove_file(file("in1")).unwrap();
    let (code, _, error) = told(&place.run(&args));
    assert!(code == Some(1) && error.contains("in1: No such file or directory"), "{error}");
}
