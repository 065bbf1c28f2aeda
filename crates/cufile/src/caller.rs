//! Which version of the interface a program was built for, as far as its structs differ.
//!
//! The statistics have grown at the end of those of level 1, which are the beginning of the others, and say neither
//! their size nor their version. The original writes those of its own version, beyond the end of what an older
//! program has. Here the version is, in this order,
//!
//! 1. the one that `BIFOLIO_CUFILE_VERSION` names, such as 1150: `cuFileGetVersion` says so, too;
//! 2. that of the bindings which the caller is, if it is some: a module that names all that one version has and
//!    nothing that came later was made from its header, as those of cuda-python are, and a module that names what
//!    came with the newer structs has these;
//! 3. the one that this library is.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The version of the interface: 1000 for each major and 10 for each minor version.
const VERSION: c_int = 1200;

/// Where the structs grew.
const VECTORS_SINCE: c_int = 1190;

/// The size of the statistics of level 1, and with it the places of everything behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Of versions 1.15 to 1.18.
    WithoutVectors,
    /// Since version 1.19.
    WithVectors,
}

impl Layout {
    pub(crate) fn basic_bytes(self) -> usize {
        match self {
            Self::WithoutVectors => 512,
            Self::WithVectors => 624,
        }
    }

    fn of_version(version: c_int) -> Self {
        if version < VECTORS_SINCE { Self::WithoutVectors } else { Self::WithVectors }
    }
}

/// Functions that came with the newer structs.
const OF_VECTORS: [&[u8]; 2] = [b"cuFileReadv", b"cuFileWritev"];

/// Functions that came with statistics, in version 1.15.
const OF_STATISTICS: [&[u8]; 12] = [
    b"cuFileGetBARSizeInKB",
    b"cuFileGetParameterMinMaxValue",
    b"cuFileGetParameterPosixPoolSlabArray",
    b"cuFileGetStatsL1",
    b"cuFileGetStatsL2",
    b"cuFileGetStatsL3",
    b"cuFileGetStatsLevel",
    b"cuFileSetParameterPosixPoolSlabArray",
    b"cuFileSetStatsLevel",
    b"cuFileStatsReset",
    b"cuFileStatsStart",
    b"cuFileStatsStop",
];

/// The version that was asked for; none for what is no version of this interface.
fn asked(text: &str) -> Option<c_int> {
    text.trim().parse().ok().filter(|version| (1000..=VERSION).contains(version))
}

fn asked_for() -> Option<c_int> {
    static ASKED: OnceLock<Option<c_int>> = OnceLock::new();
    *ASKED.get_or_init(|| std::env::var("BIFOLIO_CUFILE_VERSION").ok().as_deref().and_then(asked))
}

/// The version that programs are told.
pub(crate) fn version() -> c_int {
    asked_for().unwrap_or(VERSION)
}

/// The structs of whoever called into this library.
pub(crate) fn layout() -> Layout {
    static KNOWN: Mutex<Option<HashMap<usize, Layout>>> = Mutex::new(None);
    if let Some(version) = asked_for() {
        return Layout::of_version(version);
    }
    let Some(module) = Module::of_caller() else { return Layout::of_version(VERSION) };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.get_or_insert_default().entry(module.start()).or_insert_with(|| layout_of(|name| module.names(name)))
}

/// The structs of a module, by the functions that it names.
fn layout_of(names: impl Fn(&[u8]) -> bool) -> Layout {
    let is_older_binding = || OF_STATISTICS.iter().all(|name| names(name));
    if !OF_VECTORS.iter().any(|name| names(name)) && is_older_binding() {
        Layout::WithoutVectors
    } else {
        Layout::of_version(VERSION)
    }
}

/// A range of addresses.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
    is_constant: bool,
}

/// A program or library in memory.
#[derive(Debug, Default)]
struct Module(Vec<Part>);

impl Module {
    /// The first on the stack that is not this library.
    fn of_caller() -> Option<Self> {
        let own = Self::of(layout as *const () as usize)?;
        let mut frames = [std::ptr::null_mut(); 32];
        // SAFETY: there is room for so many addresses.
        let count = unsafe { libc::backtrace(frames.as_mut_ptr(), frames.len() as c_int) };
        let frames = frames.into_iter().take(usize::try_from(count).unwrap_or(0)).map(<*mut c_void>::addr);
        frames.filter(|frame| *frame != 0 && !own.has(*frame)).find_map(Self::of)
    }

    /// The module that an address belongs to.
    fn of(address: usize) -> Option<Self> {
        let mut search = Search { address, found: None };
        // SAFETY: the callback gets what it expects, and keeps nothing.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.found
    }

    fn has(&self, address: usize) -> bool {
        self.0.iter().any(|part| (part.start..part.start + part.len).contains(&address))
    }

    fn start(&self) -> usize {
        self.0.iter().map(|part| part.start).min().unwrap_or(0)
    }

    /// Whether the text is there, with its end: among the names that the loader resolves, or as a constant for
    /// `dlsym`. It may be the end of a longer one.
    fn names(&self, text: &[u8]) -> bool {
        let text = [text, b"\0"].concat();
        let constants = self.0.iter().filter(|part| part.is_constant);
        constants.into_iter().any(|part| {
            // SAFETY: nobody unloads a module that is being called from, and nobody writes its constants.
            let found = unsafe {
                let start = std::ptr::with_exposed_provenance::<c_void>(part.start);
                libc::memmem(start, part.len, text.as_ptr().cast(), text.len())
            };
            !found.is_null()
        })
    }
}

struct Search {
    address: usize,
    found: Option<Module>,
}

/// Looks at one module; 1 ends the search.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives a module, and `search` is what was given to it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: a module has so many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let part = |header: &libc::Elf64_Phdr| Part {
        start: (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize),
        len: header.p_memsz as usize,
        is_constant: header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R,
    };
    let module = Module(loaded.map(part).collect());
    if !module.has(search.address) {
        return 0;
    }
    search.found = Some(module);
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_of_this_interface_can_be_asked_for() {
        assert_eq!(["1150", " 1200 ", "1000"].map(asked), [Some(1150), Some(1200), Some(1000)]);
        assert_eq!(["", "1210", "999", "-1150", "1.15", "all"].map(asked), [None; 6]);
        assert_eq!([1150, 1181, 1190, 1200].map(Layout::of_version).map(Layout::basic_bytes), [512, 512, 624, 624]);
    }

    #[test]
    fn bindings_have_the_structs_of_the_version_whose_functions_they_name() {
        let of = |names: &[&[u8]]| layout_of(|name| names.contains(&name));
        assert_eq!(of(&OF_STATISTICS), Layout::WithoutVectors);
        assert_eq!(of(&[&OF_STATISTICS[..], &OF_VECTORS[..1]].concat()), Layout::WithVectors);
        // A program that uses some of the functions says nothing about its version.
        assert_eq!(of(&OF_STATISTICS[1..]), Layout::WithVectors);
        assert_eq!(of(&[]), Layout::WithVectors);
    }

    #[test]
    fn a_module_is_found_by_an_address_and_names_what_it_has() {
        let own = Module::of(layout as *const () as usize).unwrap();
        assert!(own.has(layout as *const () as usize) && !own.has(1));
        assert!(own.names(b"BIFOLIO_CUFILE_VERSION") || own.names(OF_STATISTICS[0]) || own.names(b"libc.so.6"));
        let nowhere: Vec<u8> = b"elihoN".iter().rev().copied().chain(*b" has it").collect();
        assert!(!own.names(&nowhere));
        assert!(Module::of(1).is_none());
    }
}
