//! Detection: what packets say, searched for what nobody should.

use crate::element::Class;

mod ids_matcher;

/// All of this group.
pub(super) static CLASSES: &[Class] =
    &[Class::new::<ids_matcher::IdsMatcher>("IDSMatcher", "1/1-2", "a/ah", "searches payloads for rules or literals")];
