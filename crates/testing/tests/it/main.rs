//! The house itself: arrows between rooms as drawn, no circles inside a room.

mod architecture;
mod graph;
mod modules;
mod workspace;
