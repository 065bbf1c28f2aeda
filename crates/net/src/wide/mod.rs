//! Batches of packets that a device computes (Snap; W. Sun, "Harnessing GPU Computing in System-Level Software", chapter 5).
//!
//! ```text
//!   elements    Batcher -> HostToDeviceMemcpy -> GPU elements -> DeviceToHostMemcpy -> GPUCompletionQueue -> Debatcher
//!                  |                                |                  |                                        |
//!   batch        rows, spans                        |                submit                            annotations, headers
//!                                                   v                  v
//!   path        layout of rows, buffers       stages, in order ── service ── compute's executor ── CPU or device
//! ```
//!
//! A *path* is what lies between a Batcher and its Debatcher. Its elements say what of packets they look at; `layout` is the
//! union of that, and only that travels: a row of fixed length for each packet, and where somebody wants options or payload,
//! a part of variable length. What elements find comes back in an output row for each packet: four *slots* of a byte, which
//! stand for annotations, words for longer annotations, and a changed TTL with its checksum.
//!
//! A path is one service of `compute`'s executor, and a batch one request: the executor has the lanes, the curves by which it
//! chooses between CPU and device, turns between paths, and the CPU takes over what a device fails at. All elements of a path
//! are computed in one trip, by a kernel each, or by their CPU twins, which read the same rows.
//!
//! Invariants: a batch that is packed comes back, whatever happens, and batches come back in their order. Buffers are pinned
//! and of a fixed number. What is on the way holds its packets on the host, so nothing is lost with a device.
//!
//! ```text
//!   layout   what is needed of packets and where it lies       pack     packets to rows
//!   rows     rows as the CPU twins see them                    batch    packets with their buffers
//!   stage    what an element of a path computes                service  all stages of a path, as one service
//!   devices  an executor for each device                       path     batches on their way
//!   sample   batches to measure paths with                      tables   what stages look at, on a device
//!   texts    payloads with what stands before them in flows      unpack   what was found, to packets
//!   fetch    payloads that a device fetches by itself
//! ```

mod batch;
pub(crate) mod devices;
mod fetch;
mod layout;
mod pack;
mod path;
mod rows;
mod sample;
mod service;
mod stage;
mod tables;
mod texts;
mod unpack;

pub use batch::PacketBatch;
pub use fetch::Fetch;
pub use layout::{Layout, Wants};
pub use path::{Path, PathOptions, State, Statistics};
pub use rows::{Row, Rows, Test};
pub use service::Forced;
pub use stage::{Done, Launching, Operation, Snapshot, Stage};
pub use tables::{Images, PerDevice, Readers};
pub use texts::Texts;
