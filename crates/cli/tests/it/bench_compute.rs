//! `bifolio bench compute` on the embedded device: what it reports, never how quick it is.

use crate::support::{Place, json, sentence};

const LINE: [&str; 6] = ["bench", "compute", "--sizes", "512,16K", "--seconds", "0.002"];

#[test]
fn every_service_is_compared_and_reported_at_every_size() {
    let place = Place::new();
    let html = place.dir.path().join("report.html");
    let results = json(&place.run(&[&LINE[..], &["--json", "--html", html.to_str().unwrap()]].concat()));
    let rows = results["rows"].as_array().unwrap();
    let names = ["xts", "ctr", "gcm", "raid6-generate", "raid6-recover", "raid6-scrub", "sha256", "crc32c"];
    for (name, ends) in names.into_iter().zip([2, 2, 2, 2, 2, 1, 1, 1]) {
        let of_service: Vec<_> = rows.iter().filter(|row| row["service"] == name).collect();
        assert_eq!(of_service.len(), 2 * ends, "{name}");
        for row in of_service {
            let is_measured = |way: &str| row[way]["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0);
            assert!(is_measured("hybrid") && (is_measured("library") || is_measured("cpu")), "{row}");
        }
    }
    let figures = results["figures"].as_array().unwrap();
    assert_eq!(figures.iter().map(|figure| figure["points"].as_array().unwrap().len()).collect::<Vec<_>>(), [8, 10]);
    assert!(results["left_out"].as_array().unwrap().is_empty(), "{results}");
    for of in results["statistics"].as_array().unwrap() {
        assert_eq!((of["failed"].as_u64(), of["taken_over"].as_u64()), (Some(0), Some(0)), "{of}");
    }
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("figure 4.4") && page.contains("<svg") && page.contains("raid6-scrub"), "{page}");
}

#[test]
fn what_is_asked_for_is_measured_and_what_cannot_be_is_refused() {
    let place = Place::new();
    let text = String::from_utf8(place.run(&[&LINE[..], &["--services", "crc32c"]].concat()).stdout).unwrap();
    assert!(text.contains("seed 1") && text.contains("hybrid is at least 0.95") && !text.contains("gcm"), "{text}");
    let refused = sentence(&place.run(&["bench", "compute", "--sizes", "100"]), 2);
    assert!(refused.contains("100"), "{refused}");
}
