//! `bifolio bench read` and `bifolio calibrate` on the embedded device: what they report and leave
//! behind, never how quick they are.

use crate::support::{Place, json};

#[test]
fn a_benchmark_verifies_every_engine_in_every_state() {
    let place = Place::new();
    let (file, _) = place.file("data", 12_000_123);
    let html = place.dir.path().join("report.html");
    let (file, report) = (file.to_str().unwrap(), html.to_str().unwrap());
    let args = [
        "bench",
        "read",
        file,
        "--repetitions",
        "2",
        "--sizes",
        "file,64K,1M",
        "--stripe",
        "1M",
        "--limit",
        "4M",
        "--html",
        report,
        "--json",
    ];
    let results = json(&place.run(&args));
    assert!(results["link_gb_per_s"].as_f64().unwrap() > 0.0);
    let groups = results["files"][0]["groups"].as_array().unwrap();
    assert!(!groups.is_empty());
    for group in groups {
        for row in group["rows"].as_array().unwrap() {
            assert_eq!(row["verified"], true, "{row}");
            assert_eq!(row["seconds"].as_array().unwrap().len(), 2);
            assert!(row["gb_per_s_best"].as_f64() >= row["gb_per_s_median"].as_f64());
        }
    }
    let warm = groups.iter().find(|group| group["state"] == "warm" && group["whole_file"] == true).unwrap();
    assert!(warm["auto_to_best_single"].is_number() && warm["limit_gb_per_s"].is_number());
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("All numbers"));
    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"), "the report stands by itself");
    assert!(!page.contains("<script") && !page.contains("<link"), "the report stands by itself");
}

#[test]
fn partly_cached_files_are_measured_in_both_patterns_under_contention() {
    let place = Place::new();
    let (file, _) = place.file("data", 8 << 20);
    let html = place.dir.path().join("report.html");
    let (file, report) = (file.to_str().unwrap(), html.to_str().unwrap());
    let line = "--states 0-100%/50 --sizes 512,64K --pattern random,sequential --contention none,cpu --cell 64K --requests 2000 \
                --engines cached,auto --repetitions 2 --run-time 0.1 --json --html";
    let args: Vec<_> = ["bench", "read", file].into_iter().chain(line.split_whitespace()).chain([report]).collect();
    let results = json(&place.run(&args));
    let groups = results["files"][0]["groups"].as_array().unwrap();
    let names = |key: &str| groups.iter().map(|group| group[key].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(groups.len(), 3 * 2 * 2 * 2);
    assert_eq!(names("state").iter().filter(|state| **state == "50%").count(), 8);
    assert_eq!(names("pattern").iter().filter(|pattern| **pattern == "sequential").count(), 12);
    for group in groups {
        assert_eq!(group["contention_rate"].is_number(), group["contention"] == "cpu", "{group}");
        let wanted = group["cached_wanted"].as_f64().unwrap();
        for row in group["rows"].as_array().unwrap() {
            assert_eq!(row["verified"], true, "{row}");
            // Where the kernel can tell, the state is what it is called.
            if ["cachestat", "mincore"].contains(&row["residency_source"].as_str().unwrap()) {
                for reached in ["cached_min", "cached_max"] {
                    let off = row[reached].as_f64().unwrap() - wanted;
                    assert!(off.abs() < 0.02, "{}, {}: {row}", group["state"], group["request_bytes"]);
                }
            }
        }
    }
    assert!(results["files"][0]["contentions"][0]["rate_max"].as_f64().unwrap() > 0.0);
    let counted = results["summary"]["kept_up_best"].as_u64().unwrap() as usize;
    assert_eq!(counted + results["summary"]["misses"].as_array().unwrap().len(), groups.len());
    let page = std::fs::read_to_string(html).unwrap();
    for title in ["512 B, sequential: throughput relative to auto", "64 KiB, random, without and under contention"] {
        assert!(page.contains(title), "{title}");
    }
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("contention")), "{left:?}");
}

#[test]
fn a_file_in_memory_is_measured_warm_and_the_rest_is_named() {
    let path = std::path::PathBuf::from(format!("/dev/shm/bifolio-measure-{}", std::process::id()));
    if std::fs::write(&path, vec![7; 3_000_000]).is_err() {
        return bifolio_testing::skip("/dev/shm is not writable here");
    }
    let place = Place::new();
    let output = place.run(&["bench", "read", path.to_str().unwrap(), "--repetitions", "1"]);
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("left out: cold (file): the file system keeps the file in memory"), "{text}");
    assert!(text.contains("left out: direct"), "{text}");
}

#[test]
fn a_calibration_is_stored_and_used_by_the_next_read() {
    let place = Place::new();
    let (file, _) = place.file("data", 1_000_000);
    let folder = place.dir.path().to_str().unwrap();
    let output = place.run(&["calibrate", folder, "--size", "64M", "--repetitions", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("R^2") && text.contains("stored in"), "{text}");
    let stored = place.stored_profile();
    assert!(stored.exists(), "{}", stored.display());
    let left: Vec<_> = std::fs::read_dir(place.dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("calibrate")), "{left:?}");
    // Wrong costs in it are noticed, and so it is read.
    assert!(place.run(&["read", file.to_str().unwrap()]).status.success());
    let damaged = std::fs::read_to_string(&stored).unwrap().replace("\"version\": 1", "\"version\": 99");
    std::fs::write(&stored, damaged).unwrap();
    assert_eq!(place.run(&["read", file.to_str().unwrap()]).status.code(), Some(7));
}
