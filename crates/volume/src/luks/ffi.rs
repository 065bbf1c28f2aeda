//! The functions of `libcryptsetup.so.12` that this module calls, and what else of it is unsafe.
//!
//! The library is loaded when it is first needed. One lock covers all calls: what the library initialises on
//! demand (cryptography, random numbers) it does without locks of its own. Its messages are collected
//! per thread, and become part of the error that follows them; nothing is printed.

use crate::{Error, ErrorKind, Result};
use libloading::Library;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use zeroize::Zeroizing;

const SONAME: &str = "libcryptsetup.so.12";
/// Names another file.
const VARIABLE: &str = "BIFOLIO_CRYPTSETUP_LIBRARY";

/// `CRYPT_PBKDF_NO_BENCHMARK`.
const NO_BENCHMARK: u32 = 1 << 1;

/// A `struct crypt_device`.
enum Opaque {}
type Device = *mut Opaque;

/// `struct crypt_pbkdf_type`.
#[repr(C)]
struct PbkdfType {
    kind: *const c_char,
    hash: *const c_char,
    time_ms: u32,
    iterations: u32,
    max_memory_kb: u32,
    parallel_threads: u32,
    flags: u32,
}

/// `struct crypt_params_luks2`.
#[repr(C)]
struct ParamsLuks2 {
    pbkdf: *const PbkdfType,
    integrity: *const c_char,
    integrity_params: *const c_void,
    data_alignment: usize,
    data_device: *const c_char,
    sector_size: u32,
    label: *const c_char,
    subsystem: *const c_char,
}

const _: () = assert!(size_of::<PbkdfType>() == 40 && size_of::<ParamsLuks2>() == 64);

type Log = extern "C" fn(c_int, *const c_char, *mut c_void);

macro_rules! functions {
    ($( fn $name:ident($($arg:ty),*) $(-> $ret:ty)?; )*) => {
        struct Functions {
            $( $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
            _library: Library,
        }

        impl Functions {
            fn load(library: Library) -> Result<Self, String> {
                $(
                    // SAFETY: the signature is the one that libcryptsetup.h declares for this name.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(stringify!($name).as_bytes())
                    }
                    .map_err(|_| format!("it has no function {}; version 2.4 or newer is needed", stringify!($name)))?;
                )*
                Ok(Self { $( $name, )* _library: library })
            }
        }
    };
}

functions! {
    fn crypt_init(*mut Device, *const c_char) -> c_int;
    fn crypt_free(Device);
    fn crypt_set_log_callback(Device, Option<Log>, *mut c_void);
    fn crypt_load(Device, *const c_char, *mut c_void) -> c_int;
    fn crypt_format(Device, *const c_char, *const c_char, *const c_char, *const c_char, *const c_char, usize, *mut c_void) -> c_int;
    fn crypt_set_pbkdf_type(Device, *const PbkdfType) -> c_int;
    fn crypt_keyslot_add_by_volume_key(Device, c_int, *const c_char, usize, *const c_char, usize) -> c_int;
    fn crypt_volume_key_get(Device, c_int, *mut c_char, *mut usize, *const c_char, usize) -> c_int;
    fn crypt_volume_key_verify(Device, *const c_char, usize) -> c_int;
    fn crypt_dump_json(Device, *mut *const c_char, u32) -> c_int;
    fn crypt_get_type(Device) -> *const c_char;
    fn crypt_get_cipher(Device) -> *const c_char;
    fn crypt_get_cipher_mode(Device) -> *const c_char;
    fn crypt_get_uuid(Device) -> *const c_char;
    fn crypt_get_label(Device) -> *const c_char;
    fn crypt_get_data_offset(Device) -> u64;
    fn crypt_get_iv_offset(Device) -> u64;
    fn crypt_get_sector_size(Device) -> c_int;
    fn crypt_get_volume_key_size(Device) -> c_int;
    fn crypt_get_metadata_size(Device, *mut u64, *mut u64) -> c_int;
    fn crypt_keyslot_max(*const c_char) -> c_int;
    fn crypt_keyslot_status(Device, c_int) -> c_int;
    fn crypt_keyslot_get_priority(Device, c_int) -> c_int;
    fn crypt_keyslot_get_pbkdf(Device, c_int, *mut PbkdfType) -> c_int;
    fn crypt_keyslot_area(Device, c_int, *mut u64, *mut u64) -> c_int;
    fn crypt_token_external_disable();
}

/// What the library makes of a number that it returned.
pub(super) type Status = std::result::Result<c_int, Failed>;

/// A call that failed: an `errno`, and what the library said meanwhile.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) errno: c_int,
    pub(super) said: String,
}

/// How a passphrase becomes the key of a keyslot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SlotPbkdf {
    pub(super) kind: String,
    pub(super) hash: String,
    pub(super) iterations: u32,
    pub(super) memory_kb: u32,
    pub(super) threads: u32,
}

/// The costs of a new keyslot.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewPbkdf {
    /// Measured so that it takes so long, if `iterations` is 0.
    pub(super) time_ms: u32,
    pub(super) iterations: u32,
    pub(super) memory_kb: u32,
    pub(super) threads: u32,
}

/// `crypt_keyslot_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    Active,
    /// It holds another key than the volume's.
    Unbound,
    Invalid,
}

/// What [`Context::format`] writes.
#[derive(Debug, Clone)]
pub(super) struct NewHeader<'a> {
    pub(super) key_bytes: usize,
    pub(super) sector_bytes: u32,
    pub(super) label: Option<&'a str>,
    pub(super) pbkdf: NewPbkdf,
}

/// The library's handle of one header, and its lock: contexts live one after the other.
pub(super) struct Context {
    functions: &'static Functions,
    device: NonNull<Opaque>,
    _lock: MutexGuard<'static, ()>,
}

impl Context {
    /// A handle of the header in the file with this path, which the library opens by itself.
    pub(super) fn new(path: &str) -> Result<Self> {
        static ONE: Mutex<()> = Mutex::new(());
        let functions = functions()?;
        let lock = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = said();
        let path = CString::new(path).expect("a path in /proc has no zero byte");
        let mut device = ptr::null_mut();
        // SAFETY: both pointers are valid for the call.
        let status = unsafe { (functions.crypt_init)(&raw mut device, path.as_ptr()) };
        match NonNull::new(device) {
            Some(device) if status >= 0 => {
                // SAFETY: the handle is valid, and the function lives as long as the program.
                unsafe { (functions.crypt_set_log_callback)(device.as_ptr(), Some(log), ptr::null_mut()) };
                Ok(Self { functions, device, _lock: lock })
            }
            _ => {
                let detail = format!("it cannot open a header in memory: {}", reason(status, &said()));
                Err(Error::new(ErrorKind::Missing, SONAME, detail))
            }
        }
    }

    /// Reads the header: `LUKS1` or `LUKS2`.
    pub(super) fn load(&self, kind: &CStr) -> Status {
        // SAFETY: the handle and the string are valid; parameters may be null.
        done(unsafe { (self.functions.crypt_load)(self.device.as_ptr(), kind.as_ptr(), ptr::null_mut()) })
    }

    /// Writes a LUKS2 header with a new volume key and no keyslot.
    pub(super) fn format(&self, header: &NewHeader<'_>) -> Status {
        let label = header.label.map(|label| CString::new(label).unwrap_or_default());
        let pbkdf = pbkdf_type(header.pbkdf);
        let mut params = ParamsLuks2 {
            pbkdf: &raw const pbkdf,
            integrity: ptr::null(),
            integrity_params: ptr::null(),
            data_alignment: 0,
            data_device: ptr::null(),
            sector_size: header.sector_bytes,
            label: label.as_ref().map_or(ptr::null(), |label| label.as_ptr()),
            subsystem: ptr::null(),
        };
        // SAFETY: the handle and all strings are valid for the call; a null key asks for a new one.
        done(unsafe {
            (self.functions.crypt_format)(
                self.device.as_ptr(),
                c"LUKS2".as_ptr(),
                c"aes".as_ptr(),
                c"xts-plain64".as_ptr(),
                ptr::null(),
                ptr::null(),
                header.key_bytes,
                (&raw mut params).cast(),
            )
        })
    }

    /// Adds a keyslot for the key that [`Context::format`] made.
    pub(super) fn add_keyslot(&self, pbkdf: NewPbkdf, secret: &[u8]) -> Status {
        let pbkdf = pbkdf_type(pbkdf);
        // SAFETY: the structure and its strings are valid for the call, which copies them.
        done(unsafe { (self.functions.crypt_set_pbkdf_type)(self.device.as_ptr(), &raw const pbkdf) })?;
        // SAFETY: a null key means the one in the handle; the secret is readable for its length.
        done(unsafe {
            (self.functions.crypt_keyslot_add_by_volume_key)(
                self.device.as_ptr(),
                -1,
                ptr::null(),
                0,
                secret.as_ptr().cast(),
                secret.len(),
            )
        })
    }

    /// The volume key out of a keyslot, or, without a slot, the one that [`Context::format`] made.
    pub(super) fn volume_key(
        &self,
        slot: Option<(c_int, &[u8])>,
        bytes: usize,
    ) -> std::result::Result<Zeroizing<Vec<u8>>, Failed> {
        let mut key = Zeroizing::new(vec![0; bytes]);
        let mut len = key.len();
        let (slot, secret, secret_len) = match slot {
            Some((slot, secret)) => (slot, secret.as_ptr(), secret.len()),
            None => (-1, ptr::null(), 0),
        };
        // SAFETY: the key is writable and the secret readable for the lengths given with them.
        done(unsafe {
            (self.functions.crypt_volume_key_get)(
                self.device.as_ptr(),
                slot,
                key.as_mut_ptr().cast(),
                &raw mut len,
                secret.cast(),
                secret_len,
            )
        })?;
        key.truncate(len);
        Ok(key)
    }

    /// Whether a key is the volume's, by the header's digest.
    pub(super) fn verify(&self, key: &[u8]) -> Status {
        // SAFETY: the key is readable for its length.
        done(unsafe { (self.functions.crypt_volume_key_verify)(self.device.as_ptr(), key.as_ptr().cast(), key.len()) })
    }

    /// The LUKS2 metadata.
    pub(super) fn json(&self) -> std::result::Result<String, Failed> {
        let mut json = ptr::null();
        // SAFETY: the pointer is writable.
        done(unsafe { (self.functions.crypt_dump_json)(self.device.as_ptr(), &raw mut json, 0) })?;
        Ok(text(json).unwrap_or_default())
    }

    pub(super) fn kind(&self) -> Option<String> {
        // SAFETY: the handle is valid; the string belongs to it and is copied at once.
        text(unsafe { (self.functions.crypt_get_type)(self.device.as_ptr()) })
    }

    /// Such as `aes`, `xts-plain64`.
    pub(super) fn cipher(&self) -> (String, String) {
        // SAFETY: as above.
        let cipher = text(unsafe { (self.functions.crypt_get_cipher)(self.device.as_ptr()) });
        // SAFETY: as above.
        let mode = text(unsafe { (self.functions.crypt_get_cipher_mode)(self.device.as_ptr()) });
        (cipher.unwrap_or_default(), mode.unwrap_or_default())
    }

    pub(super) fn uuid(&self) -> String {
        // SAFETY: as above.
        text(unsafe { (self.functions.crypt_get_uuid)(self.device.as_ptr()) }).unwrap_or_default()
    }

    pub(super) fn label(&self) -> String {
        // SAFETY: as above.
        text(unsafe { (self.functions.crypt_get_label)(self.device.as_ptr()) }).unwrap_or_default()
    }

    /// In sectors of 512 bytes.
    pub(super) fn data_offset(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { (self.functions.crypt_get_data_offset)(self.device.as_ptr()) }
    }

    /// In sectors of 512 bytes.
    pub(super) fn iv_offset(&self) -> u64 {
        // SAFETY: the handle is valid.
        unsafe { (self.functions.crypt_get_iv_offset)(self.device.as_ptr()) }
    }

    pub(super) fn sector_bytes(&self) -> c_int {
        // SAFETY: the handle is valid.
        unsafe { (self.functions.crypt_get_sector_size)(self.device.as_ptr()) }
    }

    pub(super) fn key_bytes(&self) -> c_int {
        // SAFETY: the handle is valid.
        unsafe { (self.functions.crypt_get_volume_key_size)(self.device.as_ptr()) }
    }

    /// Bytes of one copy of the metadata, and of the area of all keyslots (LUKS2).
    pub(super) fn metadata_bytes(&self) -> Option<(u64, u64)> {
        let (mut metadata, mut keyslots) = (0, 0);
        // SAFETY: both numbers are writable.
        let status = unsafe {
            (self.functions.crypt_get_metadata_size)(self.device.as_ptr(), &raw mut metadata, &raw mut keyslots)
        };
        (status == 0).then_some((metadata, keyslots))
    }

    pub(super) fn slots_max(&self, kind: &CStr) -> c_int {
        // SAFETY: the string is valid.
        unsafe { (self.functions.crypt_keyslot_max)(kind.as_ptr()) }
    }

    pub(super) fn slot_state(&self, slot: c_int) -> SlotState {
        // SAFETY: the handle is valid; a slot that is out of range is an answer.
        match unsafe { (self.functions.crypt_keyslot_status)(self.device.as_ptr(), slot) } {
            1 => SlotState::Free,
            2 | 3 => SlotState::Active,
            4 => SlotState::Unbound,
            _ => SlotState::Invalid,
        }
    }

    /// Higher ones are tried first; 0 is for use by name only.
    pub(super) fn slot_priority(&self, slot: c_int) -> c_int {
        // SAFETY: as above.
        unsafe { (self.functions.crypt_keyslot_get_priority)(self.device.as_ptr(), slot) }
    }

    pub(super) fn slot_pbkdf(&self, slot: c_int) -> Option<SlotPbkdf> {
        let mut pbkdf = PbkdfType {
            kind: ptr::null(),
            hash: ptr::null(),
            time_ms: 0,
            iterations: 0,
            max_memory_kb: 0,
            parallel_threads: 0,
            flags: 0,
        };
        // SAFETY: the structure is writable.
        let status = unsafe { (self.functions.crypt_keyslot_get_pbkdf)(self.device.as_ptr(), slot, &raw mut pbkdf) };
        (status >= 0).then(|| SlotPbkdf {
            kind: text(pbkdf.kind).unwrap_or_default(),
            hash: text(pbkdf.hash).unwrap_or_default(),
            iterations: pbkdf.iterations,
            memory_kb: pbkdf.max_memory_kb,
            threads: pbkdf.parallel_threads,
        })
    }

    /// Offset and bytes of a keyslot's area.
    pub(super) fn slot_area(&self, slot: c_int) -> Option<(u64, u64)> {
        let (mut offset, mut length) = (0, 0);
        // SAFETY: both numbers are writable.
        let status = unsafe {
            (self.functions.crypt_keyslot_area)(self.device.as_ptr(), slot, &raw mut offset, &raw mut length)
        };
        (status >= 0).then_some((offset, length))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handle is valid and used no more.
        unsafe { (self.functions.crypt_free)(self.device.as_ptr()) };
    }
}

impl Failed {
    /// The reason, in the library's words if it has said any.
    pub(super) fn reason(&self) -> String {
        reason(-self.errno, &self.said)
    }
}

/// A file in memory that has no name and is not inherited.
pub(super) fn file_in_memory() -> std::io::Result<File> {
    // SAFETY: the name is a string that the call copies.
    let fd = unsafe { libc::memfd_create(c"bifolio-luks-header".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The machine's memory in KiB, without bound where the system does not say.
pub(super) fn machine_memory_kb() -> u64 {
    // SAFETY: `sysinfo` is plain old data, for which zeroes are a valid value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable.
    if unsafe { libc::sysinfo(&raw mut info) } != 0 {
        return u64::MAX;
    }
    info.totalram.saturating_mul(u64::from(info.mem_unit)) / 1024
}

fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).unwrap_or_else(|| SONAME.into());
        // SAFETY: loading runs the initialisers of a library that the distribution maintains, or that the user named.
        let library = unsafe { Library::new(&name) }.map_err(|error| error.to_string())?;
        let functions = Functions::load(library)?;
        // Tokens in a header would name libraries to be loaded.
        // SAFETY: takes nothing.
        unsafe { (functions.crypt_token_external_disable)() };
        // SAFETY: without a handle this is the default for all; the function lives as long as the program.
        unsafe { (functions.crypt_set_log_callback)(ptr::null_mut(), Some(log), ptr::null_mut()) };
        Ok(functions)
    });
    loaded.as_ref().map_err(|why| {
        let detail = format!(
            "it is needed for LUKS headers and cannot be loaded ({why}); install it (Debian, Ubuntu: libcryptsetup12; Fedora: \
             cryptsetup-libs), or name its file in {VARIABLE}"
        );
        Error::new(ErrorKind::Missing, SONAME, detail)
    })
}

fn pbkdf_type(new: NewPbkdf) -> PbkdfType {
    PbkdfType {
        kind: c"argon2id".as_ptr(),
        hash: c"sha256".as_ptr(),
        time_ms: new.time_ms,
        iterations: new.iterations,
        max_memory_kb: new.memory_kb,
        parallel_threads: new.threads,
        flags: if new.iterations == 0 { 0 } else { NO_BENCHMARK },
    }
}

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

extern "C" fn log(level: c_int, message: *const c_char, _: *mut c_void) {
    /// What a sentence can carry; hostile headers can make the library say a lot.
    const SAID_BYTES_MAX: usize = 600;
    // Normal and error messages; the others are for whoever debugs the library.
    if !(0..=1).contains(&level) {
        return;
    }
    let Some(message) = text(message) else { return };
    // A thread that ends has nobody to tell.
    let _ = SAID.try_with(|said| {
        let mut said = said.borrow_mut();
        let message = message.trim().trim_end_matches('.');
        if !message.is_empty() && said.len() + message.len() < SAID_BYTES_MAX {
            if !said.is_empty() {
                said.push_str("; ");
            }
            said.push_str(message);
        }
    });
}

/// What was said since the last call.
fn said() -> String {
    SAID.with(|said| std::mem::take(&mut *said.borrow_mut()))
}

fn done(status: c_int) -> Status {
    let said = said();
    if status >= 0 { Ok(status) } else { Err(Failed { errno: -status, said }) }
}

fn reason(status: c_int, said: &str) -> String {
    if said.is_empty() { std::io::Error::from_raw_os_error(-status).to_string() } else { said.to_owned() }
}

fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the library's strings are null or end with a zero byte, and are copied before the next call.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
