//! Arrows between rooms are as `docs/architecture.md` draws them; inside a room no more than three files form a circle.

use crate::graph::circles;
use crate::modules::Modules;
use crate::workspace::{drawn, rooms, root};
use std::fmt::Write;
use std::path::Path;

/// A type, its builder and its parts may know each other; more files than these are a knot.
const CIRCLE_FILES_MAX: usize = 3;

#[test]
fn rooms_use_each_other_as_drawn() {
    let drawn = drawn();
    let found = rooms().into_iter().map(|room| (room.name.clone(), room.uses())).collect();
    assert_eq!(drawn, found, "docs/architecture.md (left) and the manifests (right) differ");
    assert!(circles(&drawn).is_empty(), "arrows between rooms point down only");
}

#[test]
fn rooms_use_what_they_are_linked_with() {
    let mut idle = Vec::new();
    for room in rooms() {
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| room.folder.join(file));
        let modules: Vec<Modules> = roots.iter().filter(|root| root.exists()).map(|root| Modules::read(root)).collect();
        let heads: Vec<&str> = modules.iter().flat_map(Modules::heads).collect();
        let unnamed = room.dependencies().into_iter().filter(|name| !heads.contains(&name.as_str()));
        idle.extend(unnamed.map(|name| format!("{} names nothing of {name}", room.name)));
    }
    assert!(idle.is_empty(), "idle dependencies: {idle:?}");
}

#[test]
fn files_form_no_knots() {
    let mut knots = String::new();
    let mut files = 0;
    for room in rooms() {
        for file in ["src/lib.rs", "src/main.rs"].map(|file| room.folder.join(file)).iter().filter(|file| file.exists())
        {
            let modules = Modules::read(file);
            files += modules.files();
            let arrows = modules.arrows();
            for circle in circles(&arrows).into_iter().filter(|circle| circle.len() > CIRCLE_FILES_MAX) {
                let _ = writeln!(knots, "{} files of {} use each other:", circle.len(), room.name);
                for file in &circle {
                    let used: Vec<String> =
                        arrows[file].iter().filter(|used| circle.contains(used)).map(|file| short(file)).collect();
                    let _ = writeln!(knots, "  {} uses {}", short(file), used.join(", "));
                }
            }
        }
    }
    assert!(files > 100, "{files} files were read, so this test looks in the wrong place");
    assert!(knots.is_empty(), "\n{knots}");
}

/// A path below the workspace's root.
fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
