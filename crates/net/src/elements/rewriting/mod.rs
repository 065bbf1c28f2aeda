//! Network address translation.

use crate::element::Class;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[];
