//! Files of packets, read and written, and packets as text.

use crate::element::{Class, Notes, PHASE_DEFAULT};

mod feed;
mod from_dump;
mod from_ip_summary_dump;
mod from_tcpdump;
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
    Class::new::<to_dump::ToDump>("ToDump", "1/0-1", "a", "writes packets to a capture file")
        .phase(PHASE_DEFAULT + 100),
];
