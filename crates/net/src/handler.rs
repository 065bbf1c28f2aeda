//! Handlers: what people and scripts read and write of an element, as text.

use crate::args;
use crate::element::Element;
use crate::router::Cx;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads: the argument is what was given with the question, mostly nothing.
pub type ReadFn = Arc<dyn Fn(&mut dyn Element, &mut Cx<'_>, &str) -> Result<String, String> + Send + Sync>;
/// Writes.
pub type WriteFn = Arc<dyn Fn(&mut dyn Element, &mut Cx<'_>, &str) -> Result<(), String> + Send + Sync>;
/// The same without the element: it is not entered for it, so that it may be in the midst of something.
pub type FreeReadFn = Arc<dyn Fn(&mut Cx<'_>, &str) -> Result<String, String> + Send + Sync>;
/// Writes without the element.
pub type FreeWriteFn = Arc<dyn Fn(&mut Cx<'_>, &str) -> Result<(), String> + Send + Sync>;

/// How a handler is read.
#[derive(Clone)]
pub enum Read {
    /// From the element.
    Of(ReadFn),
    /// Without it.
    Free(FreeReadFn),
}

/// How a handler is written.
#[derive(Clone)]
pub enum Write {
    /// To the element.
    Of(WriteFn),
    /// Without it.
    Free(FreeWriteFn),
}

/// A handler of an element.
#[derive(Clone, Default)]
pub struct Handler {
    /// How it is read, if it can be.
    pub read: Option<Read>,
    /// How it is written, if it can be.
    pub write: Option<Write>,
    /// Whether it is written without a value.
    pub is_button: bool,
    /// Whether it is left out of lists.
    pub is_hidden: bool,
    /// Whether the text is taken and given as it is, quotes included.
    pub is_raw: bool,
}

/// The handlers of an element, by their names.
#[derive(Clone, Default)]
pub struct Handlers {
    map: BTreeMap<String, Handler>,
}

fn of<E: Element>(element: &mut dyn Element) -> &mut E {
    let element: &mut dyn Any = element;
    element.downcast_mut().expect("handlers are called with the element that has them")
}

impl Handlers {
    fn entry(&mut self, name: &str) -> &mut Handler {
        self.map.entry(name.to_owned()).or_default()
    }

    /// A value that is always there to be read.
    pub fn read<E: Element, T: ToString>(
        &mut self,
        name: &str,
        read: impl Fn(&mut E, &mut Cx<'_>) -> T + Send + Sync + 'static,
    ) {
        let call: ReadFn = Arc::new(move |element, cx, _| Ok(read(of(element), cx).to_string()));
        self.entry(name).read = Some(Read::Of(call));
    }

    /// A question with an argument.
    pub fn ask<E: Element>(
        &mut self,
        name: &str,
        read: impl Fn(&mut E, &mut Cx<'_>, &str) -> Result<String, String> + Send + Sync + 'static,
    ) {
        let call: ReadFn = Arc::new(move |element, cx, text| read(of(element), cx, text));
        self.entry(name).read = Some(Read::Of(call));
    }

    /// A value to be written. An error is a line without the handler's name.
    pub fn write<E: Element>(
        &mut self,
        name: &str,
        write: impl Fn(&mut E, &mut Cx<'_>, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let call: WriteFn = Arc::new(move |element, cx, text| write(of(element), cx, text));
        self.entry(name).write = Some(Write::Of(call));
    }

    /// Something that is done when it is written, whatever is written.
    pub fn button<E: Element>(&mut self, name: &str, press: impl Fn(&mut E, &mut Cx<'_>) + Send + Sync + 'static) {
        let call: WriteFn = Arc::new(move |element, cx, _| {
            press(of(element), cx);
            Ok(())
        });
        let entry = self.entry(name);
        (entry.write, entry.is_button) = (Some(Write::Of(call)), true);
    }

    /// A number or text that is read and written as an argument of its type would be.
    pub fn data<E: Element, T: args::Arg + ToString + 'static>(
        &mut self,
        name: &str,
        field: impl Fn(&mut E) -> &mut T + Send + Sync + Clone + 'static,
    ) {
        let of_read = field.clone();
        self.read(name, move |element: &mut E, _| of_read(element).to_string());
        self.write(name, move |element: &mut E, cx, text| {
            *field(element) = cx.parse::<T>(text)?;
            Ok(())
        });
    }

    /// An argument of the configuration, by its position and keyword: whoever writes it gives the element a new
    /// configuration, which it has to take while it runs.
    pub fn keyword(&mut self, name: &str, position: usize, keyword: &'static str) {
        self.free_read(name, move |cx, _| {
            Ok(args::argument(&cx.router().config(cx.id()), position, keyword).unwrap_or_default())
        });
        self.keyword_write(name, position, keyword);
    }

    /// The same, to be written only.
    pub fn keyword_write(&mut self, name: &str, position: usize, keyword: &'static str) {
        self.free_write(name, move |cx, text| {
            let config = args::with_argument(&cx.router().config(cx.id()), position, keyword, text);
            cx.reconfigure(&config)
        });
    }

    /// Reads without entering the element.
    pub fn free_read(
        &mut self,
        name: &str,
        read: impl Fn(&mut Cx<'_>, &str) -> Result<String, String> + Send + Sync + 'static,
    ) {
        self.entry(name).read = Some(Read::Free(Arc::new(read)));
    }

    /// Writes without entering the element.
    pub fn free_write(
        &mut self,
        name: &str,
        write: impl Fn(&mut Cx<'_>, &str) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.entry(name).write = Some(Write::Free(Arc::new(write)));
    }

    /// Leaves a handler out of lists.
    pub fn hide(&mut self, name: &str) {
        self.entry(name).is_hidden = true;
    }

    /// A handler takes and gives text as it is.
    pub fn raw(&mut self, name: &str) {
        self.entry(name).is_raw = true;
    }

    /// The handler of a name.
    pub fn get(&self, name: &str) -> Option<&Handler> {
        self.map.get(name)
    }

    /// All, by their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Handler)> {
        self.map.iter().map(|(name, handler)| (name.as_str(), handler))
    }
}
