//! Detection: what packets say, searched for what nobody should.

use crate::element::Class;

pub(super) mod following;
mod ids_matcher;
pub(super) mod inspector;
pub(super) mod rule_files;

/// All of this group.
pub(super) static CLASSES: &[Class] =
    &[Class::new::<ids_matcher::IdsMatcher>("IDSMatcher", "1/1-2", "a/ah", "searches payloads for rules or literals")];
