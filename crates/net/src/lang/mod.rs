//! The language: from text to a flat graph of elements.

pub mod config;
