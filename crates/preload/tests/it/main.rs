//! The shim, under programs that know nothing of it. Nothing here links with it: its names would replace those of the C
//! library in this process.

mod programs;
