//! The workspace's manifests and its picture.

use crate::graph::Arrows;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

/// A crate's folder and manifest.
pub(crate) struct Room {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    manifest: toml::Table,
}

/// Every crate of the workspace but the one for tests.
pub(crate) fn rooms() -> Vec<Room> {
    let mut rooms = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates/ can be read") {
        let folder = entry.expect("crates/ can be read").path();
        let Ok(text) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        if name != "testing" {
            rooms.push(Room { name, folder, manifest: text.parse().expect("cargo has read it, too") });
        }
    }
    rooms.sort_by(|a, b| a.name.cmp(&b.name));
    rooms
}

impl Room {
    /// The names of what it is linked with, as code writes them.
    pub(crate) fn dependencies(&self) -> BTreeSet<String> {
        let targets = self.manifest.get("target").and_then(toml::Value::as_table);
        let of_targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
        let tables = std::iter::once(&self.manifest).chain(of_targets);
        let lists = tables.filter_map(|table| table.get("dependencies")?.as_table());
        lists.flat_map(|list| list.keys()).map(|name| name.replace('-', "_")).collect()
    }

    /// The rooms that it uses.
    pub(crate) fn uses(&self) -> BTreeSet<String> {
        self.dependencies().iter().filter_map(|name| name.strip_prefix("bifolio_")).map(str::to_owned).collect()
    }
}

/// What `docs/architecture.md` says that each room uses: the table whose first columns are `room` and `uses`.
pub(crate) fn drawn() -> Arrows<String> {
    let path = root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&path).expect("docs/architecture.md can be read");
    // A room's name leads to its page.
    let name = |cell: &str| match cell.trim().strip_prefix('[') {
        Some(link) => link.split(']').next().unwrap_or_default().to_owned(),
        None => cell.trim().to_owned(),
    };
    let cells = |line: &str| -> Vec<String> { line.split('|').map(name).collect() };
    let rows = text.lines().skip_while(|line| !line.starts_with("| room | uses |")).skip(2);
    let drawn: Arrows<String> = rows
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .map(|cells| {
            let uses = cells[2].split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "–");
            (cells[1].clone(), uses.map(str::to_owned).collect())
        })
        .collect();
    assert!(!drawn.is_empty(), "{} has no table that begins with \"| room | uses |\"", path.display());
    drawn
}
