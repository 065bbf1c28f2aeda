//! Packets of the system: devices and sockets.
