//! A folder for CPU programs, whose files devices hold in their memories.
//!
//! ```text
//!   mount       checks, and a session by `bifolio-block`'s mount helper
//!   serve       the kernel's requests, taken apart and answered
//!   server      what they do to the source
//!   nodes       the inodes that the kernel knows         opens    how each is open: passed, served, shared
//!   sync        locks
//!   given       a shared file, and what the kernel was given of it
//!   locks       locks of ranges, as locks on the source  listing  directories
//!   caller      acting for whoever asks                  sys      system calls; attr  states as the kernel wants them
//!   replicas    what is asked of whoever has files on devices, and what they ask
//!   in_process  a cache of this process as such          daemon  the cache of all processes as such
//! ```
//!
//! Files that no device wants are passed to the source by the kernel, where it can do that and lets this process
//! (`FOPEN_PASSTHROUGH`, Linux 6.9, root): reads, writes and mappings are the source's. Files that devices share are read
//! and written through [`Replicas`], and pages that programs have mapped are recalled ([`Recall`]).
//!
//! Requests come on several threads. Locks are taken in this order, and none is held while the kernel is asked for pages:
//! who has a file open, the table of nodes, a node's descriptor; the bases of pages by themselves.

mod attr;
mod caller;
mod daemon;
mod given;
mod in_process;
mod listing;
mod locks;
mod mount;
mod nodes;
mod opens;
mod replicas;
mod serve;
mod server;
mod sync;
mod sys;

pub use daemon::Daemon;
pub use in_process::{InProcess, WantedFile};
pub use mount::{MountOptions, mount};
pub use replicas::{FileKey, NoReplicas, Recall, Replicas, SharedFile};
