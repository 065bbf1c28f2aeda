//! Which classes of elements there are.

use crate::element::Class;
use std::collections::BTreeMap;

/// Classes by their names.
#[derive(Debug, Clone, Default)]
pub struct Registry(BTreeMap<&'static str, &'static Class>);

impl Registry {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// These, too; one of the same name takes the place of what was there.
    pub fn add(&mut self, classes: &'static [Class]) {
        self.0.extend(classes.iter().map(|class| (class.name, class)));
    }

    /// The class of a name.
    pub fn get(&self, name: &str) -> Option<&'static Class> {
        self.0.get(name).copied()
    }

    /// All, by their names.
    pub fn classes(&self) -> impl Iterator<Item = &'static Class> + '_ {
        self.0.values().copied()
    }
}

impl crate::lang::ClassInfo for Registry {
    fn has_class(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}
