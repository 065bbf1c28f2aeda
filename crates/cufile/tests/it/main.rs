//! The library as programs meet it: as the loader sees it, from programs in C, and with memory that the CPU cannot
//! touch.

mod device_memory;
mod programs;
mod support;
mod symbols;
