//! Arrays of Linux, and what mdadm says of ours.
