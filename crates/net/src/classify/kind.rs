//! What primitives of filter expressions are about, and the words for it.

use super::names::{ICMP, TCP, protocol_text};

/// What a primitive is about, and what kind of value it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    /// Not said.
    #[default]
    None,
    /// Wrong, and already reported.
    Wrong,
    /// A bare number (values only).
    Number,
    Host,
    Net,
    Ether,
    Protocol,
    Port,
    TcpFlags,
    Fragment,
    Whole,
    Ect,
    Ce,
    Field(Field),
}

/// A field of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    /// The transport protocol whose header it is in; none: the IP header.
    pub(super) protocol: Option<u32>,
    /// The field's first bit.
    pub(super) bit: u32,
    /// How many bits it has, 1 to 32.
    pub(super) bits: u32,
}

impl Field {
    pub(super) const fn ip(bit: u32, bits: u32) -> Kind {
        Kind::Field(Self { protocol: None, bit, bits })
    }

    /// The name of those that have one.
    pub(super) fn text(self) -> String {
        let known = match Kind::Field(self) {
            LEN => "ip len",
            ID => "ip id",
            VERS => "ip vers",
            HL => "ip hl",
            TOS => "ip tos",
            DSCP => "ip dscp",
            TTL => "ip ttl",
            TCP_WIN => "tcp win",
            ICMP_TYPE => "icmp type",
            _ => return self.protocol.map_or_else(|| "ip".into(), protocol_text) + "[...]",
        };
        known.into()
    }
}

pub(super) const LEN: Kind = Field::ip(16, 16);
pub(super) const ID: Kind = Field::ip(32, 16);
pub(super) const VERS: Kind = Field::ip(0, 4);
pub(super) const HL: Kind = Field::ip(4, 4);
pub(super) const TOS: Kind = Field::ip(8, 8);
pub(super) const DSCP: Kind = Field::ip(8, 6);
pub(super) const TTL: Kind = Field::ip(64, 8);
pub(super) const TCP_WIN: Kind = Kind::Field(Field { protocol: Some(TCP), bit: 112, bits: 16 });
pub(super) const ICMP_TYPE: Kind = Kind::Field(Field { protocol: Some(ICMP), bit: 0, bits: 8 });

impl Kind {
    /// The kind that a word names; `host`, `ttl` and the like.
    pub(super) fn named(word: &str) -> Option<Self> {
        Some(match word {
            "ce" => Self::Ce,
            "dscp" => DSCP,
            "ect" => Self::Ect,
            "frag" => Self::Fragment,
            "hl" => HL,
            "host" => Self::Host,
            "id" => ID,
            "len" => LEN,
            "net" => Self::Net,
            "opt" => Self::TcpFlags,
            "port" => Self::Port,
            "proto" => Self::Protocol,
            "tos" => TOS,
            "ttl" => TTL,
            "type" => ICMP_TYPE,
            "unfrag" => Self::Whole,
            "vers" => VERS,
            "win" => TCP_WIN,
            _ => return None,
        })
    }

    pub(super) fn text(self) -> String {
        let known = match self {
            Self::None => "<none>",
            Self::Wrong => "<unknown type -2>",
            Self::Number => "<unknown type 3>",
            Self::Host => "ip host",
            Self::Net => "ip net",
            Self::Ether => "ether host",
            Self::Protocol => "proto",
            Self::Port => "port",
            Self::TcpFlags => "tcp opt",
            Self::Fragment => "ip frag",
            Self::Whole => "ip unfrag",
            Self::Ect => "ip ect",
            Self::Ce => "ip ce",
            Self::Field(field) => return field.text(),
        };
        known.into()
    }
}

/// Which of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    Source,
    Destination,
    Both,
    Either,
}

/// How a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Relation {
    #[default]
    Equal,
    Greater,
    Less,
}

/// The header that `ip` or `ether` named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    Ip,
    Ether,
}

/// A mask that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    None,
    Number(u32),
    Address(u32),
    Ether([u8; 6]),
}
