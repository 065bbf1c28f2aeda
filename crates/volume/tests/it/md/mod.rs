//! md RAID-6: arrays in memory that fail and lose power, arrays that Linux made, and what mdadm says of ours.

mod array;
mod assembly;
mod interop;
mod power;
mod support;
