//! `bifolio bench plan`: what it reports, never how quick it is.

use crate::support::{Place, json, sentence};

#[test]
fn planners_are_compared_with_their_optimum_and_with_the_paper() {
    let place = Place::new();
    let line = ["bench", "plan", "--vectors", "400", "--seed", "5", "--profile", "none"];
    let results = json(&place.run(&[&line[..], &["--json"]].concat()));
    assert_eq!((results["vectors"].as_u64(), results["seed"].as_u64()), (Some(400), Some(5)));
    assert_eq!(results["paper_greedy_mean"].as_f64(), Some(0.989));
    let outcomes = results["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 3);
    for outcome in outcomes {
        let rows = outcome["rows"].as_array().unwrap();
        let planners: Vec<_> = rows.iter().map(|row| row["planner"].as_str().unwrap()).collect();
        assert_eq!(planners, ["greedy", "exact", "overlapped"]);
        for row in rows {
            for objective in ["sum", "makespan"] {
                let (mean, worst) = (row[objective]["mean"].as_f64(), row[objective]["worst_1_percent"].as_f64());
                assert!(worst > Some(0.0) && mean <= Some(1.000_001) && worst <= mean, "{row}");
            }
            assert!(row["planning_us_median"].as_f64() > Some(0.0), "{row}");
        }
    }
    let again = json(&place.run(&[&line[..], &["--json"]].concat()));
    assert_eq!(
        again["outcomes"][2]["rows"][0]["sum"]["worst_1_percent"],
        outcomes[2]["rows"][0]["sum"]["worst_1_percent"]
    );
    let text = String::from_utf8(place.run(&line).stdout).unwrap();
    assert!(text.contains("98.90 %") && text.contains("overlapped") && text.contains("missed: "), "{text}");
    assert!(text.contains("default costs"), "{text}");
}

#[test]
fn costs_come_from_the_profile_that_is_named_or_stored() {
    let place = Place::new();
    let folder = place.dir.path().to_str().unwrap();
    let calibrated = json(&place.run(&["calibrate", folder, "--size", "64M", "--repetitions", "1", "--json"]));
    let few = ["bench", "plan", "--vectors", "20"];
    let text = String::from_utf8(place.run(&few).stdout).unwrap();
    assert!(text.contains("calibrated costs of"), "{text}");
    let profile = place.dir.path().join("elsewhere.json");
    std::fs::write(&profile, calibrated.to_string()).unwrap();
    let profile = profile.to_str().unwrap();
    let named = [&few[..], &["--profile", profile]].concat();
    let text = String::from_utf8(place.run(&named).stdout).unwrap();
    assert!(text.contains(&format!("costs of {profile}")), "{text}");

    std::fs::write(profile, "{}").unwrap();
    assert!(sentence(&place.run(&named), 7).contains("damaged"));
    let missing = [&few[..], &["--profile", "nowhere.json"]].concat();
    assert!(sentence(&place.run(&missing), 1).contains("nowhere.json"));
    assert!(sentence(&place.run(&["bench", "plan", "--vectors", "0"]), 2).contains("--vectors"));
}
