//! The cache, from outside: against its model, against oracles, and against everything that may go wrong.

mod apart;
mod cache;
mod closes;
mod cpus;
mod crash;
mod demand;
mod detection;
mod faults;
mod frames;
mod home;
mod litmus;
mod locks;
mod losses;
mod losses_at_once;
mod lost_gpu;
mod mishaps;
mod model;
mod mounts;
mod neighbours;
mod replay;
mod schedules;
mod strangers;
mod stress;
mod support;
