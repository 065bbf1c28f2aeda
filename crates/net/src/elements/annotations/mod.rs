//! Elements that change packets' lengths and annotations, and that count packets.

mod align;
mod anno_byte;
mod average_counter;
mod clipboard;
mod counter;
mod length;
mod mac_header;
mod packet_type;
mod paint;
mod random_seed;
mod rate;
mod store_data;
mod strip;

use crate::element::Class;

/// Bytes that an element adds to a packet at most; what asks for more is a lie or a mistake.
const ADDED_MAX: usize = 1 << 18;

/// Those of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<align::Align>("Align", "1/1", "a", "moves packets' data to aligned addresses"),
    Class::new::<average_counter::AverageCounter>(
        "AverageCounter",
        "1/1",
        "a",
        "counts packets, and their rate from the first to the last",
    ),
    Class::new::<length::CheckLength>("CheckLength", "1/1-2", "a/ah", "lets packets pass up to a length"),
    Class::new::<paint::CheckPaint>("CheckPaint", "1/1-2", "a/ah", "lets packets of a colour pass"),
    Class::new::<clipboard::Clipboard>("Clipboard", "2/2", "a", "copies bytes of one packet to others").flow("#/#"),
    Class::new::<counter::Counter>("Counter", "1/1", "a", "counts packets and bytes, and their recent rates"),
    Class::new::<mac_header::MarkMacHeader>("MarkMACHeader", "1/1", "a", "sets where the link layer's header begins"),
    Class::new::<length::Pad>("Pad", "1/1", "a", "makes packets longer, up to a length"),
    Class::new::<paint::Paint>("Paint", "1/1", "a", "paints packets with a colour"),
    Class::new::<paint::PaintTee>("PaintTee", "1/2", "a/ah", "copies packets of a colour to a second output"),
    Class::new::<random_seed::RandomSeed>("RandomSeed", "0/0", "a", "says where random numbers begin").phase(0),
    Class::new::<length::Resize>("Resize", "1/1", "a", "makes packets longer or shorter at both ends"),
    Class::new::<anno_byte::SetAnnoByte>("SetAnnoByte", "1/1", "a", "sets a byte of the annotations"),
    Class::new::<packet_type::SetPacketType>("SetPacketType", "1/1", "a", "sets to whom the link layer sent packets"),
    Class::new::<store_data::StoreData>("StoreData", "1/1", "a", "overwrites bytes of packets"),
    Class::new::<strip::Strip>("Strip", "1/1", "a", "takes bytes off the beginning of packets"),
    Class::new::<strip::StripToNetworkHeader>(
        "StripToNetworkHeader",
        "1/1",
        "a",
        "takes off what lies before the network layer's header",
    ),
    Class::new::<length::Truncate>("Truncate", "1/1", "a", "makes packets shorter, down to a length"),
    Class::new::<strip::Unstrip>("Unstrip", "1/1", "a", "puts bytes back that were taken off the beginning"),
];
