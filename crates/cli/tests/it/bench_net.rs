//! `bifolio bench net`: what it reports, never how quick it is.

use crate::support::{Place, json, sentence};
use serde_json::Value;

const SMALL: [&str; 9] = ["bench", "net", "--packets", "2000", "--rules", "20", "--repetitions", "1", "--routes"];

#[test]
fn every_configuration_is_measured_in_every_way() {
    let place = Place::new();
    let line = [&SMALL[..], &["300", "--cores", "1,2", "--seed", "7", "--json"]].concat();
    let results = json(&place.run(&line));
    for (name, value) in [("packets", 2000), ("rules", 20), ("routes", 300), ("seed", 7), ("frame_bytes", 64)] {
        assert_eq!(results[name].as_u64(), Some(value), "{name}");
    }
    let rows = results["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| (row["case"].as_str().unwrap(), row["way"].to_string())).collect();
    let ways = [r#""single""#, r#"{"batches":1}"#, r#"{"batches":2}"#];
    let all = ["router", "filter", "lookup", "nat"].into_iter().flat_map(|case| ways.map(|way| (case, way.to_owned())));
    assert_eq!(names, all.collect::<Vec<_>>());
    for row in rows {
        assert!(row["million_packets_per_s"].as_f64() > Some(0.0) && row["load_s"].as_f64() > Some(0.0), "{row}");
        let rate = row["million_packets_per_s"].as_f64().unwrap() * row["ns_per_packet"].as_f64().unwrap();
        assert!((rate - 1000.0).abs() < 0.001, "{row}");
        let rival = match row["way"].to_string().as_str() {
            r#"{"batches":1}"# => Value::from("single"),
            r#"{"batches":2}"# => serde_json::json!({"batches": 1}),
            _ => row["way"].clone(),
        };
        assert!(row["rival"] == rival || row["rival"].is_null() && row["way"] == "single", "{row}");
    }
}

#[test]
fn routes_come_from_a_file_that_is_named() {
    let place = Place::new();
    let path = place.dir.path().join("routes");
    std::fs::write(&path, "# prefixes\n10.0.0.0/8\n2001:db8::/32\n0.0.0.0/0\n192.0.2.0/24\n").unwrap();
    let file = ["300", "--cases", "lookup", "--frame", "1514", "--routes-file", path.to_str().unwrap()];
    let line = [&SMALL[..], &file].concat();
    let text = String::from_utf8(place.run(&line).stdout).unwrap();
    assert!(text.contains("of 1514 bytes") && text.contains("2 routes") && text.contains("all packets"), "{text}");
    assert!(!text.contains("filter ") && text.contains("lookup"), "{text}");

    for (content, told) in [
        ("nothing\n", "no IPv4 prefix"),
        ("300.0.0.0/8\n", "300.0.0.0"),
        ("10.0.0.0/8\n1.0.0.0/99\n", "routes: line 2: '1.0.0.0/99'"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = sentence(&place.run(&line), 1);
        assert!(error.contains(told), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let error = sentence(&place.run(&line), 1);
    assert!(error.contains("routes") && error.contains("No such file"), "{error}");
}

#[test]
fn results_are_drawn_again_without_measuring() {
    let place = Place::new();
    let file = |name: &str| place.dir.path().join(name).to_str().unwrap().to_owned();
    let (results, first, again) = (file("results.json"), file("first.svg"), file("again.svg"));
    let paths = ["bench", "net", "--device", "host", "--paths", "route,ids", "--frames", "64,0", "--bytes", "100K"];
    let small = ["--literals", "20", "--routes", "20", "--batch", "64,256", "--loads", "5", "--repetitions", "1"];
    let measured = place.run(&[&paths[..], &small, &["--plot", &first, "--json"]].concat());
    let text = String::from_utf8(measured.stdout.clone()).unwrap();
    std::fs::write(&results, &text).unwrap();
    let redraw = ["bench", "net", "--plot", &again, "--from", &results];
    assert_eq!(json(&place.run(&[&redraw[..], &["--json"]].concat())), json(&measured));
    let read = |name: &str| std::fs::read_to_string(name).unwrap();
    assert!(read(&again) == read(&first) && read(&again).contains("latency, us"));
    assert!(String::from_utf8(place.run(&redraw).stdout).unwrap().contains("all packets accounted for"));

    let lines: Vec<&str> = text.lines().collect();
    let broken = [&lines[..3], &["nonsense"], &lines[3..]].concat().join("\n");
    for (content, told) in [
        (broken.as_str(), "results.json: line 4: this is not what bench net --paths --json prints"),
        ("{\n}", "results.json: line 2: this is not what bench net --paths --json prints: missing field"),
        ("", "results.json: line 1: "),
    ] {
        std::fs::write(&results, content).unwrap();
        let error = sentence(&place.run(&redraw), 1);
        assert!(error.contains(told), "{error}");
    }
    std::fs::remove_file(&results).unwrap();
    assert!(sentence(&place.run(&redraw), 1).contains("reading the results failed"));
    for (line, told) in [
        (vec!["--from", "x"], "--plot"),
        (vec!["--plot", "x"], "--paths"),
        (vec!["--plot", "x", "--from", "y", "--paths", "ids"], "--from"),
    ] {
        let error = sentence(&place.run(&[&["bench", "net"], &line[..]].concat()), 2);
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    let place = Place::new();
    for (option, value) in [
        ("--packets", "0"),
        ("--frame", "59"),
        ("--frame", "9001"),
        ("--rules", "0"),
        ("--routes", "0"),
        ("--cores", "0"),
        ("--burst", "0"),
        ("--repetitions", "0"),
        ("--cases", "router,bridge"),
    ] {
        let error = sentence(&place.run(&["bench", "net", option, value]), 2);
        assert!(error.contains(option), "{error}");
    }
}
