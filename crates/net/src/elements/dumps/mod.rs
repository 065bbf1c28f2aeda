//! Files of packets, read and written, and packets as text.

use crate::element::{Class, Notes, PHASE_DEFAULT};

mod arp_print;
mod feed;
mod from_dump;
mod from_ip_summary_dump;
mod from_tcpdump;
mod ip_print;
mod lines;
mod message;
mod print;
mod sample;
#[cfg(test)]
mod summary_tests;
#[cfg(test)]
mod tests;
mod to_dump;
mod to_ip_summary_dump;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<from_dump::FromDump>("FromDump", "0/1-2", "a/ah", "reads packets from a capture file")
        .notes_empty(Notes::Own),
    Class::new::<from_ip_summary_dump::FromIpSummaryDump>(
        "FromIPSummaryDump",
        "0/1",
        "a",
        "makes packets of an IP summary dump",
    )
    .notes_empty(Notes::Own),
    Class::new::<from_tcpdump::FromTcpdump>("FromTcpdump", "0/1", "a", "makes packets of what tcpdump printed")
        .notes_empty(Notes::Own),
    Class::new::<to_ip_summary_dump::ToIpSummaryDump>(
        "ToIPSummaryDump",
        "1/0-1",
        "a/h",
        "writes a line or a record for each packet",
    ),
    Class::new::<print::Print>("Print", "1/1", "a", "prints packets' bytes"),
    Class::new::<ip_print::IpPrint>("IPPrint", "1/1", "a", "prints IP packets as tcpdump does"),
    Class::new::<arp_print::ArpPrint>("ARPPrint", "1/1", "a", "prints ARP packets as tcpdump does"),
    Class::new::<message::Message>("Message", "0/0", "a", "says something when it is configured"),
    Class::new::<to_dump::ToDump>("ToDump", "1/0-1", "a", "writes packets to a capture file")
        .phase(PHASE_DEFAULT + 100),
];
