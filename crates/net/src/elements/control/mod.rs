//! Control: scripts, and sockets for those who read and write handlers from outside.

use crate::element::{Class, PHASE_LAST};

mod functions;
mod script;
mod socket;
mod system;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<script::Script>("Script", "-/-", "ah/ah", "runs instructions that read and write handlers")
        .phase(PHASE_LAST),
    Class::new::<script::DriverManager>(
        "DriverManager",
        "0/0",
        "a",
        "a Script that says what follows when the router stops",
    )
    .phase(PHASE_LAST),
    Class::new::<socket::ControlSocket>("ControlSocket", "0/0", "a", "lets programs call handlers through a socket"),
];
