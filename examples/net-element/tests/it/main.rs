//! The example as its users run it.

use bifolio_net::capture::{LinkType, PcapOptions, PcapWriter, Reader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn click(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_net-element")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(path: &Path, packets: &[Vec<u8>]) {
    let options = PcapOptions { link: LinkType::ETHERNET, snaplen: 65_535, nano: false };
    let mut writer = PcapWriter::new(std::fs::File::create(path).unwrap(), options).unwrap();
    for bytes in packets {
        writer.write(0, bytes, bytes.len() as u32).unwrap();
    }
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path.to_str().unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.read().unwrap() {
        packets.push(record.data.to_vec());
    }
    packets
}

#[test]
fn the_text_is_overwritten_wherever_it_stands() {
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    // Few letters, so that texts stand side by side, overlap, and begin at the end.
    let packets: Vec<Vec<u8>> =
        (0..300).map(|_| (0..random.usize(1..60)).map(|_| b"ab"[random.usize(..2)]).collect()).collect();
    let folder_of_files = tempfile::tempdir().unwrap();
    let [input, output]: [PathBuf; 2] = ["in.pcap", "out.pcap"].map(|name| folder_of_files.path().join(name));
    write(&input, &packets);
    let config = folder().join("redact.click");
    let (input, output_of) = (format!("IN={}", input.display()), format!("OUT={}", output.display()));
    let ran = click(&[config.to_str().unwrap(), &input, &output_of, "TEXT=aba"]);
    assert_eq!((text(&ran.stderr), ran.status.code()), (String::new(), Some(0)));

    let lines = packets.iter().map(|bytes| text(bytes)).collect::<Vec<_>>();
    let expected: Vec<_> = lines.iter().map(|line| line.replace("aba", "***").into_bytes()).collect();
    assert_eq!(read(&output), expected);
    let count: usize = lines.iter().map(|line| line.matches("aba").count()).sum();
    assert_eq!(text(&ran.stdout), format!("{count} texts overwritten\n"));
}

#[test]
fn the_tools_know_the_element() {
    assert_eq!(click(&["click-buildtool", "provides", "Redact", "Queue"]).status.code(), Some(0));
    assert!(text(&click(&["click-pretty", "-e", "Idle -> Redact(a) -> Discard"]).stdout).contains("overwrites a text"));
    let ran = click(&[
        "-e",
        "Idle -> redact :: Redact(a) -> Discard; DriverManager(write redact.reset)",
        "-h",
        "redact.count",
    ]);
    assert_eq!((text(&ran.stdout), ran.status.code()), ("0\n".to_owned(), Some(0)));
}

#[test]
fn what_is_wrong_is_told_and_nothing_starts() {
    for (config, error) in
        [("Redact", "TEXT: required argument missing\nRouter"), ("Redact(\"\")", "TEXT must not be empty")]
    {
        let ran = click(&["-e", &format!("Idle -> {config} -> Discard")]);
        let told = text(&ran.stderr);
        assert!(told.contains(error) && ran.status.code() == Some(1), "{told}");
    }
}

#[test]
fn the_guide_shows_this_code() {
    let guide = std::fs::read_to_string(folder().join("../../docs/guide/net.md")).unwrap();
    let (_, chapter) = guide.split_once("## An element of one's own").expect("a chapter");
    let code = ["src/redact.rs", "src/main.rs"].map(|file| std::fs::read_to_string(folder().join(file)).unwrap());
    let blocks: Vec<_> = chapter.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert!(code.iter().any(|file| file.contains(block)), "not in the example:\n{block}");
    }
}
