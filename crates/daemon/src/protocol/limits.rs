//! How much one message may say.

/// Of the protocol. Who speaks another one is told so, and goes.
pub const VERSION: u64 = 1;

/// Numbers in one message at most.
pub const NUMBERS_MAX: usize = 16_384;

/// Frames in one answer at most; who wants more asks from the end of these on.
pub const FRAMES_MAX: usize = 4096;

/// Files in one answer at most; who wants more asks for those behind the last.
pub const FILES_MAX: usize = 16;

/// Connections that one answer tells of at most.
pub const CLIENTS_MAX: usize = 2048;

/// Connections of which one answer says what they have of a file, at most.
pub const HOLDERS_MAX: usize = 64;

/// Bytes of a file in one message at most.
pub const DATA_BYTES_MAX: usize = 128 << 10;

/// Bytes of a path in an answer at most; of a longer one this many are told.
pub(super) const PATH_BYTES_MAX: usize = 4096;

/// Bytes of text at most.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;

/// Numbers of what has happened to pages.
pub(super) const COUNTS: usize = 13;

/// Devices of a cache at most.
pub(super) const DEVICES_MAX: usize = 64;
