//! Longest-prefix tables.
