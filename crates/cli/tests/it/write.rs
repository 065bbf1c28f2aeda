//! `bifolio write`, `bifolio stripe`, and the benchmarks of short reads, writes, sets and several
//! devices, on the embedded device: what they do and report, never how quick they are.

use crate::support::{Place, json, sentence};

fn text(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The command with arguments, in the place's folder.
fn run_in(place: &Place, line: &str) -> std::process::Output {
    let args: Vec<_> = line.split_whitespace().collect();
    place.command(&args).current_dir(place.dir.path()).output().unwrap()
}

#[test]
fn what_is_written_is_in_the_file_and_nothing_else_changed() {
    let place = Place::new();
    let (_, source) = place.file("source", 3_000_001);
    for engine in ["auto", "cached", "direct"] {
        let (target, mut expected) = place.file("target", 1_500_000);
        let line = format!("write target --from source --offset 1000003 --engine {engine} --sync --verify --json");
        let output = run_in(&place, &line);
        if engine == "direct" && !output.status.success() {
            bifolio_testing::skip(sentence(&output, 3));
            continue;
        }
        let answer = json(&output);
        assert_eq!((answer["bytes"].as_u64(), &answer["durable"]), (Some(3_000_001), &true.into()));
        expected.truncate(1_000_003);
        expected.extend_from_slice(&source);
        assert!(std::fs::read(target).unwrap() == expected, "{engine}");
    }
}

#[test]
fn bad_writes_are_sentences_and_leave_the_file_alone() {
    let place = Place::new();
    place.file("source", 10_000);
    let (target, before) = place.file("target", 5000);
    let longer = sentence(&run_in(&place, "write target --from source --length 10001"), 2);
    assert!(longer.contains("10000") && longer.contains("10001"), "{longer}");
    assert!(sentence(&run_in(&place, "write none/target --from source"), 1).contains("directory"));
    assert!(sentence(&run_in(&place, "write target --from nothing"), 1).contains("no such file"));
    assert!(sentence(&run_in(&place, "write target --from source --engine mapped"), 3).contains("cannot write"));
    assert!(sentence(&run_in(&place, "write stripe:none.toml --from source"), 1).contains("descriptor"));
    assert!(std::fs::read(target).unwrap() == before);
}

#[test]
fn a_set_is_made_written_read_explained_and_checked() {
    let place = Place::new();
    let (_, content) = place.file("source", 3_000_000);
    let made = text(&run_in(&place, "stripe create set.toml a b c --size 3000000 --chunk 64K"));
    assert!(made.starts_with("stripe:set.toml"), "{made}");
    let info = json(&run_in(&place, "stripe info stripe:set.toml --json"));
    assert_eq!((info["bytes"].as_u64(), info["chunk_bytes"].as_u64()), (Some(3_000_000), Some(65_536)));
    let members: u64 = info["members"].as_array().unwrap().iter().map(|member| member["bytes"].as_u64().unwrap()).sum();
    assert_eq!(members, 3_000_000);
    text(&run_in(&place, "write stripe:set.toml --from source --verify"));
    let read = json(&run_in(&place, "read stripe:set.toml --sha256 --verify --json"));
    assert_eq!(read["sha256"].as_str().unwrap(), crate::support::sha256(&content));
    assert!(text(&run_in(&place, "read stripe:set.toml --explain")).contains("member"));
    // RAID-0 by hand.
    let mut by_hand = vec![];
    let members = ["a", "b", "c"].map(|name| std::fs::read(place.dir.path().join(name)).unwrap());
    for chunk in 0..3_000_000_usize.div_ceil(65_536) {
        let member = &members[chunk % 3];
        let at = chunk / 3 * 65_536;
        by_hand.extend_from_slice(&member[at..member.len().min(at + 65_536)]);
    }
    assert!(by_hand == content);
    // Nothing is overwritten, and a member that is missing or of the wrong size is refused.
    assert!(sentence(&run_in(&place, "stripe create set.toml d e --size 1M"), 5).contains("exists"));
    std::fs::File::options().write(true).open(place.dir.path().join("b")).unwrap().set_len(100).unwrap();
    assert!(sentence(&run_in(&place, "read stripe:set.toml"), 7).starts_with("bifolio: b,"));
    std::fs::remove_file(place.dir.path().join("b")).unwrap();
    assert!(sentence(&run_in(&place, "stripe info stripe:set.toml"), 1).contains("no such file"));
    assert!(sentence(&run_in(&place, "stripe info source"), 1).contains("plain file"));
}

#[test]
fn one_file_goes_to_several_devices() {
    let place = Place::new();
    place.file("data", 5_000_001);
    for spread in ["shard", "replicate"] {
        let line = format!("read data --device host:0,host:1 --spread {spread} --verify");
        assert!(text(&run_in(&place, &line)).contains("verified"));
    }
    let results = json(&run_in(&place, "bench spread data --device host:0,host:1 --repetitions 1 --json"));
    assert!(results["rows"].as_array().unwrap().iter().all(|row| row["verified"] == true));
    assert!(sentence(&run_in(&place, "bench spread data"), 2).contains("two devices"));
}

#[test]
fn short_reads_and_writes_are_measured_and_compared() {
    let place = Place::new();
    place.file("data", 1 << 20);
    let small = "bench small data --repetitions 1 --reads 64 --sizes 4K --json";
    assert!(!json(&run_in(&place, small))["rows"].as_array().unwrap().is_empty());
    let write = json(&run_in(&place, "bench write . --size 1M --repetitions 1 --json"));
    assert!(write["rows"].as_array().unwrap().iter().any(|row| row["to_rival"].is_number()));
    let left: Vec<_> = std::fs::read_dir(place.dir.path())
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.file_name().into_string().ok()?).filter(|name| name.contains("bench")))
        .collect();
    assert!(left.is_empty(), "{left:?} stay behind");
}

#[test]
fn a_set_is_compared_with_plain_copies_and_a_file_is_not_overwritten_unasked() {
    let place = Place::new();
    let (file, before) = place.file("data", 1 << 20);
    let line = "bench disparity . --size 1M --members 2 --chunk 64K --states warm --repetitions 1 --run-time 0.01 --html out.html";
    let results = json(&run_in(&place, &format!("{line} --json")));
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 9, "four patterns, 4K to 1M");
    assert!(rows.iter().all(|row| row["verified"] == true));
    assert!(std::fs::read_to_string(place.dir.path().join("out.html")).unwrap().contains("<svg"));
    assert!(sentence(&run_in(&place, "bench disparity data"), 2).contains("--overwrite"));
    let uploads = "bench disparity data --patterns rdrd --states warm --repetitions 1 --run-time 0.01";
    text(&run_in(&place, uploads));
    assert!(std::fs::read(file).unwrap() == before);
}
