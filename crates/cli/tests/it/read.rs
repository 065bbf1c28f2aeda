//! `bifolio read` on the embedded device: right bytes, and what is said about them.

use crate::support::{Place, json, sentence, sha256};

#[test]
fn every_engine_reads_any_offset_and_length() {
    let place = Place::new();
    let (file, content) = place.file("data", 9_000_017);
    let mut random = fastrand::Rng::with_seed(bifolio_testing::seed());
    for engine in ["cached", "mapped", "direct", "auto"] {
        for round in 0..6 {
            let offset = if round == 0 { 0 } else { random.u64(0..content.len() as u64) };
            let length = if round == 0 { u64::from(u32::MAX) } else { random.u64(0..5_000_000) };
            let (from, to) = (offset as usize, (offset + length).min(content.len() as u64) as usize);
            let (o, l) = (offset.to_string(), length.to_string());
            let path = file.to_str().unwrap();
            let output = place.run(&[
                "read", path, "--engine", engine, "--offset", &o, "--length", &l, "--sha256", "--verify", "--json",
            ]);
            if output.status.code() == Some(3) {
                bifolio_testing::skip(sentence(&output, 3));
                break;
            }
            let answer = json(&output);
            assert_eq!(answer["sha256"], sha256(&content[from..to]), "{engine} {offset} {length}");
            assert_eq!(answer["verified"], true);
            assert_eq!(answer["bytes"], (to - from) as u64);
        }
    }
}

#[test]
fn the_answer_has_the_promised_shape() {
    let place = Place::new();
    let (file, _) = place.file("data", 3_000_000);
    let path = file.to_str().unwrap();
    let answer = json(&place.run(&["--json", "read", path]));
    assert_eq!(answer["file"], path);
    assert_eq!(answer["device"], "host:0");
    assert_eq!(answer["bytes"], 3_000_000);
    for number in ["seconds", "gb_per_s", "cpu_s_per_gb", "plan_seconds", "predicted_s", "pinned_bytes"] {
        assert!(answer[number].is_number(), "{number}: {answer}");
    }
    assert!(answer["reason"].is_string());
    assert!(answer.get("sha256").is_none() && answer.get("verified").is_none() && answer.get("runs").is_none());
    assert!(answer["residency"]["source"].is_string());
    assert_eq!(answer["residency"]["total_bytes"], 3_000_000);
    assert!(answer["residency"]["cached_bytes"].as_u64().unwrap() <= 3_000_000);
    let plan = answer["plan"].as_array().unwrap();
    assert_eq!(plan.iter().map(|segment| segment["length"].as_u64().unwrap()).sum::<u64>(), 3_000_000);
    for segment in plan {
        assert!(segment["engine"].is_string() && segment["offset"].is_u64(), "{segment}");
        assert!(segment["predicted_s"].is_number() && segment["actual_s"].is_number(), "{segment}");
    }
}

#[test]
fn repeated_runs_are_all_reported_and_the_best_leads() {
    let place = Place::new();
    let (file, _) = place.file("data", 2_000_000);
    let answer = json(&place.run(&["read", file.to_str().unwrap(), "--repeat", "4", "--json", "--mapped-budget", "0"]));
    let seconds: Vec<f64> =
        answer["runs"].as_array().unwrap().iter().map(|run| run["seconds"].as_f64().unwrap()).collect();
    assert_eq!(seconds.len(), 4);
    assert!(seconds.iter().all(|seconds| *seconds >= answer["seconds"].as_f64().unwrap()));
}

#[test]
fn host_memory_is_bounded_by_the_pool() {
    let place = Place::new();
    let (file, content) = place.file("data", 20_000_000);
    let output = place.run(&[
        "read",
        file.to_str().unwrap(),
        "--pool",
        "256K",
        "--slot",
        "64K",
        "--threads",
        "2",
        "--sha256",
        "--json",
    ]);
    let answer = json(&output);
    assert_eq!(answer["sha256"], sha256(&content));
    assert!(answer["pinned_bytes"].as_u64().unwrap() <= 256 << 10, "{answer}");
}

#[test]
fn an_empty_file_and_an_empty_range_are_read() {
    let place = Place::new();
    let (empty, _) = place.file("empty", 0);
    let (file, _) = place.file("data", 5000);
    let empty = empty.to_str().unwrap();
    let file = file.to_str().unwrap();
    for args in [vec!["read", empty], vec!["read", file, "--offset", "5000"], vec!["read", file, "--length", "0"]] {
        for engine in ["auto", "cached", "direct"] {
            let args = [&args[..], &["--sha256", "--verify", "--json", "--engine", engine]].concat();
            let answer = json(&place.run(&args));
            assert_eq!(answer["bytes"], 0);
            assert_eq!(answer["sha256"], sha256(b""));
        }
    }
}

#[test]
fn a_sparse_file_is_read_as_zeroes() {
    let place = Place::new();
    let path = place.dir.path().join("sparse");
    std::fs::File::create(&path).unwrap().set_len(3_000_001).unwrap();
    let answer = json(&place.run(&["read", path.to_str().unwrap(), "--sha256", "--json"]));
    assert_eq!(answer["sha256"], sha256(&vec![0; 3_000_001]));
}

#[test]
fn the_plan_is_explained() {
    let place = Place::new();
    let (file, _) = place.file("data", 3_000_000);
    let output = place.run(&["read", file.to_str().unwrap(), "--explain", "--verify"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["host:0", "GB/s", "verified", "cached", "plan", "predicted", "pinned", "engine", "offset", "actual ms"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn the_flag_wins_over_the_environment() {
    let place = Place::new();
    let (file, _) = place.file("data", 1000);
    let read = ["read", file.to_str().unwrap(), "--json"];
    let answer = json(&place.command(&read).env("BIFOLIO_DEVICE", "host:2").output().unwrap());
    assert_eq!(answer["device"], "host:2");
    let answer =
        json(&place.command(&read).env("BIFOLIO_DEVICE", "cuda:7").args(["--device", "host:3"]).output().unwrap());
    assert_eq!(answer["device"], "host:3");
}
