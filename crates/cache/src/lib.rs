//! One page cache over files, host memory and the memories of devices.
//!
//! What each page's replicas owe each other is decided in [`page`], which moves no byte: the same code is
//! checked exhaustively for small worlds (`tests/model.rs`). `docs/coherence.md` has it in prose.

pub mod page;
