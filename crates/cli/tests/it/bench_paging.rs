//! `bifolio bench paging`: what it measures and leaves behind, never how quick it is.

use crate::support::{Place, json, sentence};
use crate::swap::{can_swap, one_at_a_time};

#[test]
fn a_program_swaps_on_each_space_and_the_metric_is_of_its_requests() {
    if !can_swap() {
        return;
    }
    let (_alone, place) = (one_at_a_time(), Place::new());
    let folder = place.dir.path().to_str().unwrap();
    let page = place.dir.path().join("page.html");
    let sizes = "--limit 8M --working-set 32M --seconds 0.3 --point 0.01 --sizes 4K,64K,1M --json --html";
    let mut args = vec!["bench", "paging", folder];
    args.extend(sizes.split(' '));
    args.push(page.to_str().unwrap());
    let output = place.run(&args);
    if String::from_utf8_lossy(&output.stderr).contains("a memory cgroup cannot be made") {
        return bifolio_testing::skip("memory cgroups cannot be made here");
    }
    let results = json(&output);
    let paging = &results["runs"][0];
    assert_eq!(paging["space"], "paging");
    assert_eq!(paging["wrong_words"], 0);
    assert!(paging["pages_verified"].as_u64() >= Some(8192) && paging["slow_faults"].as_u64() > Some(0), "{results}");
    let shares = |side: &str| -> f64 {
        results["sizes"][side].as_array().unwrap().iter().map(|share| share["share"].as_f64().unwrap()).sum()
    };
    assert!((shares("reads") - 1.0).abs() < 1e-6 && (shares("writes") - 1.0).abs() < 1e-6, "{results}");
    for rates in results["rates"].as_array().unwrap() {
        assert!(rates["metric_mb_per_s"].as_f64() > Some(0.0), "{rates}");
        assert_eq!(rates["reads"].as_array().unwrap().len(), 3);
    }
    assert!(std::fs::read_to_string(&page).unwrap().contains("<svg"));
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("bifolio")), "{left:?}");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    if !can_swap() {
        return;
    }
    let place = Place::new();
    let said = sentence(&place.run(&["bench", "paging", "/none/such"]), 1);
    assert!(said.contains("/none/such"), "{said}");
}
