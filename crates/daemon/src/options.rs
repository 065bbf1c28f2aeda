//! What a daemon is told when it is started.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Choices for a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// Names of devices, in the order in which races are won: the later beats the earlier. None for all GPUs, or `host:0`.
    pub devices: Vec<String>,
    /// Bytes of each device's memory for cached files; 0 leaves it to the device.
    pub memory_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a frame, or 0 for what fits.
    pub frame_bytes: u64,
    /// A group whose members may connect, and to whom frames are lent as to the daemon's own user.
    pub group: Option<u32>,
    /// Whether others may connect: they get copies.
    pub serves_others: bool,
    /// After so many seconds without a connection it ends, with everything written; 0 for never.
    pub idle_exit_seconds: u32,
    /// Bytes of each device's memory that shall be free for other programs: where there are fewer, what nobody uses is given
    /// back, and clients are asked to release; 0 for none.
    #[serde(default)]
    pub free_bytes: u64,
    /// How long clients may take for that before they are disconnected, in milliseconds.
    #[serde(default = "recall_ms")]
    pub recall_ms: u64,
    /// What one user may have at a time.
    pub limits: Limits,
}

fn recall_ms() -> u64 {
    10_000
}

/// What one user may have at a time, beside the daemon's own; and what one connection may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Connections, of everybody.
    pub connections: usize,
    /// Connections of a user.
    pub connections_of_user: usize,
    /// Files that a connection has open.
    pub files: usize,
    /// Bytes of a file that is cached: account of its pages takes a thousandth of that in memory of the host.
    pub file_bytes: u64,
    /// Mappings, acquired ranges and pins of a connection.
    pub leases: usize,
    /// Bytes of a user that stay where they are as they are acquired or pinned, on all devices.
    pub bytes_of_user: u64,
    /// Bytes of a user's private copies, on all devices.
    pub copied_bytes_of_user: u64,
    /// Messages of a connection in a second; those behind them wait.
    pub messages_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_user: 256,
            files: 1024,
            file_bytes: 1 << 40,
            leases: 16_000,
            bytes_of_user: u64::MAX,
            copied_bytes_of_user: 4 << 30,
            messages_per_second: 200_000,
        }
    }
}

impl Options {
    /// With everything else as it is by default.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            devices: vec![],
            memory_bytes: 0,
            page_bytes: 64 << 10,
            frame_bytes: 0,
            group: None,
            serves_others: false,
            idle_exit_seconds: 0,
            free_bytes: 0,
            recall_ms: recall_ms(),
            limits: Limits::default(),
        }
    }
}
