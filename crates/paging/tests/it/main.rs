//! The paging cache on faulty backings and faulty devices, against an oracle.

mod allocations;
mod attachments;
mod device_faults;
mod kills;
mod oracle;
mod resize;
mod sleeps;
mod support;
mod write_back;
