//! What users of a file keep with it: the engines' registrations, the windows of readahead. A file knows that they are
//! there and tells them what concerns them; what they are is theirs alone. They go when the file goes.

use crate::options::Advice;
use std::any::Any;
use std::fmt::Debug;
use std::sync::OnceLock;

/// Something that is kept with an open file.
pub(crate) trait Attachment: Any + Send + Sync + Debug {
    /// The file was written, or is to leave the page cache: what shows or holds its pages goes.
    fn release_pages(&self) {}

    /// The program has said how it will read the file.
    fn advised(&self, _advice: Advice) {}
}

/// Who keeps something: one thing each.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keeper {
    /// Windows of readahead.
    Readahead,
    /// Registrations of page-cache pages.
    Mapped,
    /// The file as the driver of the direct path knows it.
    P2p,
}

/// What one keeper keeps with a file.
pub(crate) trait Kept: Attachment + Default {
    /// Whose it is.
    const KEEPER: Keeper;
}

/// All that is kept with one file, made when it is first asked for.
#[derive(Debug, Default)]
pub(super) struct Attachments([OnceLock<Box<dyn Attachment>>; Keeper::P2p as usize + 1]);

impl Attachments {
    /// What `T` keeps.
    pub(super) fn get<T: Kept>(&self) -> &T {
        let attachment = self.0[T::KEEPER as usize].get_or_init(|| Box::new(T::default()));
        (&**attachment as &dyn Any).downcast_ref().expect("a keeper keeps one kind of thing")
    }

    /// All that there is.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Attachment> {
        self.0.iter().filter_map(|kept| kept.get().map(|attachment| &**attachment))
    }
}
