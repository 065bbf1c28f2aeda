//! Benchmarks that are interrupted: they print what they have measured, and say that it is partial.

use crate::support::{Place, signal, until_at_work};
use std::process::{Output, Stdio};

/// Starts a benchmark that would take hours, and interrupts it once it has worked for a while.
fn interrupted(place: &Place, line: &str, name: &str) -> Output {
    let args: Vec<&str> = line.split(' ').collect();
    let mut command = place.command(&args);
    command.current_dir(place.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until_at_work(child.id(), 0.5);
    signal(child.id(), name);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn is_partial(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted; the results are partial") && !stderr.contains("panicked"), "{stderr}");
}

#[track_caller]
fn results(output: &Output) -> serde_json::Value {
    is_partial(output);
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["partial"], true, "{results}");
    results
}

#[test]
fn short_reads_have_the_runs_until_then() {
    let place = Place::new();
    place.file("data", 1 << 20);
    let line = "bench small data --reads 16 --sizes 4K --states warm --repetitions 10000 --json";
    let results = results(&interrupted(&place, line, "INT"));
    let rows = results["rows"].as_array().unwrap();
    assert!(!rows.is_empty(), "{results}");
    for row in rows {
        let runs = row["seconds"].as_array().unwrap().len();
        assert!((1..10_000).contains(&runs) && row["gb_per_s_median"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn writes_leave_no_file_behind() {
    let place = Place::new();
    let output = interrupted(&place, "bench write . --size 1M --repetitions 10000", "INT");
    is_partial(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("partial: ") && text.contains("(page cache alone)"), "{text}");
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("bench")), "{left:?}");
}

#[test]
fn a_simulation_counts_the_vectors_that_it_has_tried() {
    let place = Place::new();
    let line = "bench plan --vectors 10000000 --profile none --json";
    let results = results(&interrupted(&place, line, "TERM"));
    assert!((1..10_000_000).contains(&results["vectors"].as_u64().unwrap()), "{results}");
    assert_eq!(results["outcomes"][0]["rows"].as_array().unwrap().len(), 3);
}
