//! Files of packets.
