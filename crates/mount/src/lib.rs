//! A folder for CPU programs, whose files devices hold in their memories.
//!
//! ```text
//!   mount       checks, and a session by `bifolio-block`'s mount helper
//!   kept        servers that may be killed, and their keeper           resume   a session that goes on
//!   state/      what outlives a server: plain numbers in shared memory
//!   serve       the kernel's requests, taken apart and answered        answer   answers;  greet  the first one
//!   server      what they do to the source                             names    what they do to names, each once
//!   nodes       the inodes that the kernel knows                       openings openings, and what is done by them
//!   opens       how each file is open: passed, served, shared          sync     locks
//!   given       a shared file, and what the kernel was given of it
//!   locks       locks of ranges, as locks on the source                listing  directories;  control  `ioctl`
//!   caller      acting for whoever asks                                sys      system calls; attr  states for the kernel
//!   replicas    what is asked of whoever has files on devices, and what they ask
//!   in_process  a cache of this process as such                        daemon   the cache of all processes as such
//!   fault       where tests have a server killed
//! ```
//!
//! Files that no device wants are passed to the source by the kernel, where it can do that and lets this process
//! (`FOPEN_PASSTHROUGH`, Linux 6.9, root): reads, writes and mappings are the source's. Files that devices share are read
//! and written through [`Replicas`], and pages that programs have mapped are recalled ([`Recall`]).
//!
//! Requests come on several threads. Locks are taken in this order, and none is held while the kernel is asked for pages:
//! who has a file open, the table of nodes, a node's descriptor; the bases of pages by themselves.

mod answer;
mod attr;
mod caller;
mod control;
mod daemon;
#[cfg(feature = "fault-injection")]
pub mod fault;
#[cfg(not(feature = "fault-injection"))]
#[allow(dead_code, unreachable_pub, reason = "points are listed for the tests that end servers at them")]
mod fault;
mod given;
mod greet;
mod in_process;
mod kept;
mod listing;
mod locks;
mod mount;
mod names;
mod nodes;
mod openings;
mod opens;
mod replicas;
mod resume;
mod serve;
mod server;
mod state;
mod sync;
mod sys;

pub use bifolio_keeper::Event;
pub use daemon::Daemon;
pub use in_process::{InProcess, WantedFile};
pub use kept::{KeptMount, Served};
pub use mount::{MountOptions, mount};
pub use replicas::{FileKey, Ledger, NoReplicas, Once, Recall, Replicas, SharedFile};
