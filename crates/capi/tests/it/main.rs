//! The C interface: its header, programs in C, and the order of its calls with the work of a default stream.

mod c_programs;
mod header;
mod order;
