//! click-buildtool: of what it does for programs that compile elements, only `provides` has a meaning here, since all
//! elements are in the program: it says which classes and packages there are.

use super::tool::{print, version};
use crate::Registry;

const HELP: &str = "Says what there is to build routers from.

Usage: click-buildtool provides [NAME]...
       click-buildtool [--help | --version]

'provides' writes the classes of elements, a line each. With names, it writes nothing: the exit code is 0 where all of them
are classes of elements or packages, else 1.
";

/// Packages that Click's configurations ask for, and that are always there.
pub(super) const PACKAGES: &[&str] = &["click", "userlevel", "linux", "ip", "tcpudp", "icmp", "ethernet", "app"];

/// Runs it.
pub(super) fn main(args: &[String], registry: &Registry) -> i32 {
    match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("provides", [])) => {
            print(&registry.classes().flat_map(|class| [class.name, "\n"]).collect::<String>());
            0
        }
        Some(("provides", names)) => i32::from(!names.iter().all(|name| provides(registry, name))),
        Some(("--help", _)) => {
            print(HELP);
            0
        }
        Some(("--version" | "-v", _)) => {
            print(&version("click-buildtool"));
            0
        }
        _ => {
            eprintln!("Usage: click-buildtool provides [NAME]...\nTry 'click-buildtool --help' for more information.");
            1
        }
    }
}

fn provides(registry: &Registry, name: &str) -> bool {
    registry.get(name).is_some() || PACKAGES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_packages_are_provided() {
        let run =
            |args: &[&str]| main(&args.iter().map(ToString::to_string).collect::<Vec<_>>(), &Registry::standard());
        assert_eq!(run(&["provides", "Queue", "userlevel"]), 0);
        assert_eq!(run(&["provides", "Queue", "NoSuchElement"]), 1);
        assert_eq!(run(&["makepackage"]), 1);
        assert_eq!(run(&[]), 1);
    }
}
