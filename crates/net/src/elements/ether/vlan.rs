//! What a VLAN tag is made of: an argument VLAN_TCI, VLAN_ID and VLAN_PCP, which several elements have.

use crate::Packet;
use crate::args::{Arg, ArgCx, Args};
use crate::handler::Handlers;

/// A whole number of `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounded<const MIN: i32, const MAX: i32>(pub(super) i32);

impl<const MIN: i32, const MAX: i32> Arg for Bounded<MIN, MAX> {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        match i32::parse(text, cx)? {
            value if value < MIN => Err(format!("out of range, bound {MIN}")),
            value if value > MAX => Err(format!("out of range, bound {MAX}")),
            value => Ok(Self(value)),
        }
    }
}

impl<const MIN: i32, const MAX: i32> std::fmt::Display for Bounded<MIN, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The native VLAN, whose packets have no tag: 0 to 4095; -1: there is none.
pub(super) type Native = Bounded<-1, 0xfff>;

/// A tag, or that of each packet's annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Fixed(u16),
    Anno,
}

impl Tag {
    /// The tag for a packet.
    #[inline]
    pub(super) fn of(self, packet: &Packet) -> u16 {
        match self {
            Self::Fixed(tci) => tci,
            Self::Anno => super::frame::vlan_tci(packet),
        }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(tci) => tci.fmt(f),
            Self::Anno => f.write_str("ANNO"),
        }
    }
}

impl Arg for Tag {
    fn parse(text: &str, cx: &ArgCx<'_>) -> Result<Self, String> {
        if text == "ANNO" {
            return Ok(Self::Anno);
        }
        Ok(Self::Fixed(Bounded::<0, 0xffff>::parse(text, cx)?.0 as u16))
    }
}

/// The arguments of a tag, as they were given or set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TagArgs {
    tci: Option<Tag>,
    priority: Bounded<0, 7>,
    id: Bounded<0, 0xfff>,
}

impl Default for TagArgs {
    fn default() -> Self {
        Self { tci: None, priority: Bounded(0), id: Bounded(0) }
    }
}

impl TagArgs {
    /// Reads VLAN_TCI and VLAN_PCP, by position or keyword, and VLAN_ID. `ANNO` counts only where it may.
    pub(super) fn read(&mut self, args: &mut Args<'_>, may_be_anno: bool) {
        args.may("VLAN_TCI", &mut self.tci).may("VLAN_PCP", &mut self.priority).key("VLAN_ID", &mut self.id);
        if !may_be_anno && self.tci == Some(Tag::Anno) {
            args.error_of("VLAN_TCI", "invalid number");
        }
    }

    /// The tag: VLAN_TCI if it was given, else VLAN_ID, with the priority.
    pub(super) fn tag(&self) -> Tag {
        let priority = (self.priority.0 << 13) as u16;
        match self.tci {
            Some(Tag::Anno) => Tag::Anno,
            Some(Tag::Fixed(tci)) => Tag::Fixed(tci | priority),
            None => Tag::Fixed(self.id.0 as u16 | priority),
        }
    }

    /// The arguments as text.
    pub(super) fn text(&self) -> String {
        match self.tag() {
            Tag::Anno => "ANNO".to_owned(),
            Tag::Fixed(tci) => format!("VLAN_ID {}, VLAN_PCP {}", tci & 0xfff, tci >> 13),
        }
    }
}

/// An element with the arguments of a tag.
pub(super) trait Tagged: crate::element::Element {
    fn tag_args(&mut self) -> &mut TagArgs;

    /// The tag has changed.
    fn retag(&mut self);
}

/// Handlers `vlan_tci`, `vlan_id` and `vlan_pcp`.
pub(super) fn tag_handlers<E: Tagged>(handlers: &mut Handlers, may_be_anno: bool) {
    handlers.read("vlan_tci", |element: &mut E, _| element.tag_args().tag());
    handlers.write("vlan_tci", move |element: &mut E, cx, text| {
        let tci = cx.parse::<Tag>(text)?;
        if !may_be_anno && tci == Tag::Anno {
            return Err("invalid number".to_owned());
        }
        element.tag_args().tci = Some(tci);
        element.retag();
        Ok(())
    });
    handlers.read("vlan_id", |element: &mut E, _| element.tag_args().id);
    handlers.write("vlan_id", |element: &mut E, cx, text| {
        element.tag_args().id = cx.parse(text)?;
        // Of the two, what was said last counts.
        element.tag_args().tci = None;
        element.retag();
        Ok(())
    });
    handlers.read("vlan_pcp", |element: &mut E, _| element.tag_args().priority);
    handlers.write("vlan_pcp", |element: &mut E, cx, text| {
        element.tag_args().priority = cx.parse(text)?;
        element.retag();
        Ok(())
    });
}
