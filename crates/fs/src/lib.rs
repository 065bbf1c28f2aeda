//! Encrypted directories in gocryptfs's on-disk format.
