//! Patterns and filter expressions, compiled to decision programs.
