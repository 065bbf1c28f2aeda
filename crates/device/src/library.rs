//! Loading of vendors' libraries at run time: where they were looked for, what was found, and a
//! table of their functions.
//!
//! A missing library, a missing symbol and a file that is no library are ordinary results here,
//! with the places searched in the message. (Bindings that load on first use and abort when that
//! fails cannot give a machine without a GPU its ordinary answer, and they take no path.)

use crate::LibraryReport;
use std::path::{Path, PathBuf};

/// A table of functions of one library, loaded together: `api_table! { pub Name { fn f(a: A) -> R; } }`
/// makes a struct whose fields are the functions, and `Name::load(&Library)`. After them may come
/// those that older versions of the library lack, as `optional fn g() -> R;`: their fields are options.
macro_rules! api_table {
    ($(#[$doc:meta])* $vis:vis $name:ident {
        $( fn $function:ident ( $($arg:ident : $ty:ty),* $(,)? ) -> $ret:ty; )*
        $( optional fn $option:ident ( $($option_arg:ident : $option_ty:ty),* $(,)? ) -> $option_ret:ty; )*
    }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the names are the library's own")]
        $vis struct $name {
            $( pub(crate) $function: unsafe extern "C" fn($($arg: $ty),*) -> $ret, )*
            $( pub(crate) $option: Option<unsafe extern "C" fn($($option_arg: $option_ty),*) -> $option_ret>, )*
            _library: libloading::Library,
        }

        #[allow(non_snake_case, reason = "the names are the library's own")]
        impl $name {
            /// Resolves every function; names the first that is missing and not optional.
            pub(crate) fn load(library: libloading::Library) -> Result<Self, String> {
                // SAFETY: each symbol has the C signature that the vendor's header declares.
                unsafe {
                    $( let $function = *library
                        .get::<unsafe extern "C" fn($($arg: $ty),*) -> $ret>(concat!(stringify!($function), "\0").as_bytes())
                        .map_err(|_| format!("it has no function {}: the library is broken or too old", stringify!($function)))?; )*
                    $( let $option = library
                        .get::<unsafe extern "C" fn($($option_arg: $option_ty),*) -> $option_ret>(
                            concat!(stringify!($option), "\0").as_bytes(),
                        )
                        .ok()
                        .map(|function| *function); )*
                    Ok(Self { $( $function, )* $( $option, )* _library: library })
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}
pub(crate) use api_table;

/// What to look for.
pub(crate) struct Search<'a> {
    /// For reports, such as `CUDA driver`.
    pub(crate) name: &'static str,
    /// An environment variable that names the file; if set, nothing else is tried.
    pub(crate) variable: &'a str,
    /// File names for the dynamic loader, best first.
    pub(crate) sonames: &'a [&'a str],
    /// Files to try after the loader's path, best first.
    pub(crate) candidates: Vec<PathBuf>,
}

/// Loads the first library of `search` that opens and has all functions that `table` wants.
pub(crate) fn find<T>(
    search: &Search<'_>,
    table: impl Fn(libloading::Library) -> Result<T, String>,
) -> Result<(T, LibraryReport), LibraryReport> {
    find_by(search, open, table)
}

/// The same for a library whose own symbols go before those of libraries that the program was linked with,
/// because one of these may have the same names.
pub(crate) fn find_apart<T>(
    search: &Search<'_>,
    table: impl Fn(libloading::Library) -> Result<T, String>,
) -> Result<(T, LibraryReport), LibraryReport> {
    find_by(search, open_apart, table)
}

fn find_by<T>(
    search: &Search<'_>,
    open: impl Fn(&Path) -> Result<libloading::Library, libloading::Error>,
    table: impl Fn(libloading::Library) -> Result<T, String>,
) -> Result<(T, LibraryReport), LibraryReport> {
    let named = std::env::var_os(search.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let places: Vec<PathBuf> = match &named {
        Some(path) => vec![path.clone()],
        None => search.sonames.iter().map(PathBuf::from).chain(search.candidates.iter().cloned()).collect(),
    };
    let mut broken = None;
    for place in &places {
        match open(place) {
            Ok(library) => match table(library) {
                Ok(table) => {
                    let path = loaded_path(place);
                    return Ok((
                        table,
                        LibraryReport { name: search.name, path: Some(path), version: None, problem: None },
                    ));
                }
                Err(why) => _ = broken.get_or_insert(format!("{} was found, but {why}", place.display())),
            },
            // A file that is there and does not open is worth more than "not found".
            Err(why) if place.is_absolute() && place.exists() => {
                _ = broken.get_or_insert(format!("{} could not be loaded: {why}", place.display()));
            }
            Err(_) => {}
        }
    }
    let problem = broken.unwrap_or_else(|| match named {
        Some(path) => format!("{} (set by {}) does not exist", path.display(), search.variable),
        None => not_found(search),
    });
    Err(LibraryReport { name: search.name, path: None, version: None, problem: Some(problem) })
}

fn not_found(search: &Search<'_>) -> String {
    let mut folders: Vec<_> = search.candidates.iter().filter_map(|file| file.parent()).collect();
    folders.dedup();
    let folders: Vec<_> = folders.iter().take(6).map(|folder| folder.display().to_string()).collect();
    let also = if folders.is_empty() { String::new() } else { format!(" or in {}", folders.join(", ")) };
    format!(
        "{} was not found on the loader's path{also} (set {} to its path)",
        search.sonames.first().unwrap_or(&search.name),
        search.variable
    )
}

fn open(place: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: loading runs the library's initialisers. These are vendors' driver libraries that
    // every program on the machine loads in the same way, or a file that the user named.
    unsafe { libloading::Library::new(place) }
}

fn open_apart(place: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
    // SAFETY: as in `open`.
    unsafe { Library::open(Some(place), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_DEEPBIND) }.map(Into::into)
}

/// The absolute path behind a soname that the loader resolved, where /proc tells it.
fn loaded_path(place: &Path) -> String {
    let name = place.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.split(".so").next().unwrap_or(&name).to_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_line = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let is_it = |path: &String| {
        Path::new(path).file_name().is_some_and(|file| file.to_string_lossy().starts_with(&format!("{stem}.so")))
    };
    maps.lines().filter_map(of_line).find(is_it).unwrap_or_else(|| place.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(variable: &'static str) -> Search<'static> {
        Search {
            name: "test library",
            variable,
            sonames: &["libbifolio-no-such.so.1"],
            candidates: vec![PathBuf::from("/nonexistent/libx.so")],
        }
    }

    #[test]
    fn a_missing_library_names_where_it_was_looked_for() {
        let report = find(&search("BIFOLIO_TEST_UNSET"), |_| Ok(())).unwrap_err();
        let problem = report.problem.unwrap();
        assert!(problem.contains("libbifolio-no-such.so.1") && problem.contains("/nonexistent"), "{problem}");
    }

    #[test]
    fn a_file_that_is_no_library_is_reported_as_broken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libbroken.so");
        std::fs::write(&file, b"not an ELF file").unwrap();
        let mut search = search("BIFOLIO_TEST_UNSET");
        search.candidates = vec![file];
        let problem = find(&search, |_| Ok(())).unwrap_err().problem.unwrap();
        assert!(problem.contains("could not be loaded"), "{problem}");
    }

    #[test]
    fn a_library_without_a_function_is_reported_by_that_function() {
        let search =
            Search { name: "C library", variable: "BIFOLIO_TEST_UNSET", sonames: &["libc.so.6"], candidates: vec![] };
        let problem = find(&search, |_| Err::<(), _>("it has no function f".to_owned())).unwrap_err().problem.unwrap();
        assert!(problem.contains("libc.so.6 was found, but it has no function f"), "{problem}");
    }

    #[test]
    fn an_optional_function_may_be_missing() {
        api_table! {
            Table {
                fn getpid() -> i32;
                optional fn getppid() -> i32;
                optional fn bifolio_no_such_function() -> i32;
            }
        }
        let table = Table::load(open(Path::new("libc.so.6")).unwrap()).unwrap();
        // SAFETY: the call takes nothing and changes nothing.
        assert_eq!(unsafe { (table.getpid)() }, std::process::id().cast_signed());
        assert!(table.getppid.is_some() && table.bifolio_no_such_function.is_none());
    }
}
