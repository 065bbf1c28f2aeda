//! `bifolio bench volume`: what it makes, compares and removes.

use crate::support::{Place, json};

#[test]
fn every_way_gives_the_plain_content_and_nothing_stays_behind() {
    if !bifolio_testing::has("cryptsetup") {
        return;
    }
    let place = Place::new();
    let folder = place.dir.path().to_str().unwrap();
    let line = "--size 2M --chunk 64K --data-members 2 --states warm --cpu-threads 2 --repetitions 1 --json";
    let args: Vec<&str> = ["bench", "volume", folder].into_iter().chain(line.split(' ')).collect();
    let results = json(&place.run(&args));
    let rows = results["rows"].as_array().unwrap();
    let ways: Vec<&str> = rows.iter().map(|row| row["way"].as_str().unwrap()).collect();
    assert_eq!(ways.len(), 7, "{ways:?}");
    for row in rows {
        assert_eq!((&row["verified"], row["gb_per_s_median"].as_f64() > Some(0.0)), (&true.into(), true), "{row}");
        assert_eq!(row["to_rival"].is_number(), row["way"] != "plain file", "{row}");
    }
    assert_eq!(results["partial"], false);
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "cache"), "{left:?}");
}
