//! `nbdkit nbdkit-bifolio-plugin.so image=PATH... [key=FD] [readonly=true]`: volumes over NBD.
//!
//! The key comes through a descriptor that nbdkit has inherited, so that it is in no command line and no environment.
//! Without one, a volume that needs a key is refused. `bifolio volume export --nbd` starts all this.
//!
//! Only the plugin is here: what calls nbdkit's functions, which exist in its process alone. Starting and ending nbdkit is
//! `bifolio_block::nbd`.
//!
//! Requests run on nbdkit's threads, many at the same time. A flush, and a write that asks for it, reach the files;
//! a connection's flush covers what others have written, so clients may use several.

mod abi;

use abi::{FLAG_FUA, FUA_NATIVE, Handle, PARALLEL, Plugin};
use bifolio_block::{BlockDevice, Error as BlockError, Result as BlockResult, printable};
use bifolio_volume::{Error, ErrorKind, OpenOptions, Result, Unlock};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zeroize::Zeroizing;

/// The longest request that clients are told of; longer ones need not be served.
const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// As long as key files can be.
const KEY_BYTES_MAX: usize = 8 << 20;

unsafe extern "C" {
    fn nbdkit_error(format: *const c_char, ...);
    fn nbdkit_set_error(errno: c_int);
}

/// What the command line asked for.
#[derive(Debug, Default)]
struct Asked {
    images: Vec<PathBuf>,
    key_fd: Option<c_int>,
    read_only: bool,
    unlock: Unlock,
    /// Whoever started this wants the kind of an error before its sentence.
    kinds: bool,
}

static ASKED: Mutex<Option<Asked>> = Mutex::new(None);
static DEVICE: OnceLock<Arc<dyn BlockDevice>> = OnceLock::new();

static PLUGIN: Plugin = Plugin {
    _struct_size: size_of::<Plugin>() as u64,
    _api_version: 2,
    _thread_model: PARALLEL,
    name: c"bifolio".as_ptr(),
    longname: c"Bifolio volumes".as_ptr(),
    version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    description: c"LUKS and md RAID-6 volumes in image files or on block devices".as_ptr(),
    load: None,
    unload: None,
    config: Some(config),
    config_complete: Some(config_complete),
    config_help: c"image=PATH      an image file or block device; several are members of one volume
key=FD          an inherited descriptor to read the key from
readonly=true   refuse writes
discard=true    pass discards through
any-cost=true   also try keyslots that cost very much
kinds=true      begin the message about a volume that cannot be opened with the error's kind"
        .as_ptr(),
    open: Some(open),
    close: Some(close),
    get_size: Some(get_size),
    can_write: Some(can_write),
    can_flush: Some(yes),
    is_rotational: None,
    can_trim: Some(can_trim),
    _pread_v1: None,
    _pwrite_v1: None,
    _flush_v1: None,
    _trim_v1: None,
    _zero_v1: None,
    errno_is_preserved: 0,
    dump_plugin: None,
    can_zero: None,
    can_fua: Some(can_fua),
    pread: Some(pread),
    pwrite: Some(pwrite),
    flush: Some(flush),
    trim: Some(trim),
    zero: None,
    magic_config_key: c"image".as_ptr(),
    can_multi_conn: Some(yes),
    can_extents: None,
    extents: None,
    can_cache: None,
    cache: None,
    thread_model: None,
    can_fast_zero: None,
    preconnect: None,
    get_ready: Some(get_ready),
    after_fork: None,
    list_exports: None,
    default_export: None,
    export_description: None,
    cleanup: Some(cleanup),
    block_size: Some(block_size),
};

/// What nbdkit looks for.
#[unsafe(no_mangle)]
extern "C" fn plugin_init() -> *const Plugin {
    &raw const PLUGIN
}

extern "C" fn config(key: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: nbdkit passes two strings.
    let (key, value) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    done(configure(asked.get_or_insert_default(), &key.to_string_lossy(), value).map_err(Into::into))
}

fn configure(asked: &mut Asked, key: &str, value: &CStr) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let text = value.to_string_lossy();
    let wrong = |what: &str| Err(Error::new(ErrorKind::BadUse, format!("{key}={text}"), what.to_owned()));
    let truth = || match &*text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    };
    match key {
        "image" => asked.images.push(std::ffi::OsStr::from_bytes(value.to_bytes()).into()),
        "key" => match text.parse() {
            Ok(fd) if fd > 2 => asked.key_fd = Some(fd),
            _ => return wrong("it is not the number of an inherited descriptor"),
        },
        "readonly" | "discard" | "any-cost" | "kinds" => {
            let Some(value) = truth() else { return wrong("it is neither true nor false") };
            match key {
                "readonly" => asked.read_only = value,
                "discard" => asked.unlock.discard = value,
                "kinds" => asked.kinds = value,
                _ => asked.unlock.any_cost = value,
            }
        }
        _ => return wrong("this plugin has no such parameter"),
    }
    Ok(())
}

extern "C" fn config_complete() -> c_int {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    if asked.as_ref().is_some_and(|asked| !asked.images.is_empty()) {
        return 0;
    }
    let error = Error::new(ErrorKind::BadUse, "image", "name the image file or block device with image=PATH");
    done(Err(error.into()))
}

/// Opens the volume once, for all connections.
extern "C" fn get_ready() -> c_int {
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let key = |name: &str| match asked.key_fd {
        // SAFETY: whoever started nbdkit passed the descriptor for this, and it is asked for once.
        Some(fd) => read_key(File::from(unsafe { OwnedFd::from_raw_fd(fd) }), name),
        None => Err(Error::new(ErrorKind::WrongKey, name, "it needs a key, and none was given (key=FD)")),
    };
    let is_encrypted = asked.key_fd.is_some();
    let unlock = asked.unlock;
    // nbdkit sees signals when this is done; whoever cannot wait kills it, as nothing is served yet.
    let options = OpenOptions { writable: !asked.read_only, unlock, key: &key, is_encrypted, cancel: None };
    match bifolio_volume::open(&asked.images, &options) {
        Ok(opened) => {
            let _ = DEVICE.set(opened.device);
            0
        }
        Err(error) => {
            let sentence = if asked.kinds { format!("{:?}: {error}", error.kind()) } else { error.to_string() };
            failed(&error.into(), &sentence)
        }
    }
}

fn read_key(mut file: File, name: &str) -> Result<Zeroizing<Vec<u8>>> {
    let about = |error| Error::system(name, "reading the key from its descriptor", error);
    // A vector that grows would leave copies behind.
    let mut key = Zeroizing::new(vec![0; KEY_BYTES_MAX + 1]);
    let mut len = 0;
    while len < key.len() {
        match file.read(&mut key[len..]).map_err(about)? {
            0 => break,
            read => len += read,
        }
    }
    if len > KEY_BYTES_MAX {
        return Err(Error::new(ErrorKind::BadUse, name, format!("a key has at most {KEY_BYTES_MAX} bytes")));
    }
    Ok(Zeroizing::new(key[..len].to_vec()))
}

extern "C" fn open(_: c_int) -> Handle {
    // All connections share one device; this only says that there is one.
    DEVICE.get().map_or(ptr::null_mut(), |device| ptr::from_ref(device).cast_mut().cast())
}

extern "C" fn close(_: Handle) {}

extern "C" fn cleanup() {
    if let Some(device) = DEVICE.get() {
        // It is never dropped.
        let _ = done(device.settle());
        complain();
    }
}

fn device() -> &'static dyn BlockDevice {
    &**DEVICE.get().expect("nbdkit opens connections after get_ready")
}

extern "C" fn get_size(_: Handle) -> i64 {
    i64::try_from(device().geometry().size).unwrap_or(i64::MAX)
}

extern "C" fn can_write(_: Handle) -> c_int {
    c_int::from(!device().is_read_only())
}

extern "C" fn can_trim(_: Handle) -> c_int {
    c_int::from(!device().is_read_only())
}

extern "C" fn can_fua(_: Handle) -> c_int {
    FUA_NATIVE
}

extern "C" fn yes(_: Handle) -> c_int {
    1
}

extern "C" fn block_size(_: Handle, minimum: *mut u32, preferred: *mut u32, maximum: *mut u32) -> c_int {
    let block = device().geometry().block_bytes.clamp(4096, 1 << 20).next_power_of_two();
    // SAFETY: nbdkit passes three places to write to.
    unsafe {
        *minimum = 1;
        *preferred = block as u32;
        *maximum = REQUEST_BYTES_MAX;
    }
    0
}

extern "C" fn pread(_: Handle, buffer: *mut c_void, count: u32, offset: u64, _: u32) -> c_int {
    // SAFETY: nbdkit lends `count` bytes, which it has initialised, until this returns.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize) };
    done(device().read(offset, buffer))
}

extern "C" fn pwrite(_: Handle, buffer: *const c_void, count: u32, offset: u64, flags: u32) -> c_int {
    // SAFETY: nbdkit lends `count` bytes until this returns.
    let data = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize) };
    done(device().write(offset, data).and_then(|()| flush_if_asked(flags)))
}

extern "C" fn flush(_: Handle, _: u32) -> c_int {
    let flushed = done(device().flush());
    complain();
    flushed
}

/// Says what was made good, and that nobody would hear of otherwise.
fn complain() {
    for text in device().complaints() {
        let text = CString::new(&*printable(&text)).unwrap_or_default();
        // SAFETY: the format takes one string, which is valid for the call.
        unsafe { nbdkit_error(c"%s".as_ptr(), text.as_ptr()) };
    }
}

extern "C" fn trim(_: Handle, count: u32, offset: u64, flags: u32) -> c_int {
    done(device().discard(offset, u64::from(count)).and_then(|()| flush_if_asked(flags)))
}

fn flush_if_asked(flags: u32) -> BlockResult<()> {
    if flags & FLAG_FUA == 0 { Ok(()) } else { device().flush() }
}

/// What nbdkit is told: the sentence, and the number that clients see.
fn done(result: BlockResult<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => failed(&error, &error.to_string()),
    }
}

fn failed(error: &BlockError, sentence: &str) -> c_int {
    let text = CString::new(&*printable(sentence)).unwrap_or_default();
    // SAFETY: the format takes one string, which is valid for the call.
    unsafe {
        nbdkit_error(c"%s".as_ptr(), text.as_ptr());
        nbdkit_set_error(error.errno());
    }
    -1
}
