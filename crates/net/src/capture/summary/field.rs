//! The fields of a dump.

/// What a field is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    None,
    Timestamp,
    Sec,
    Usec,
    Usec1,
    FirstTimestamp,
    Count,
    Link,
    Direction,
    Aggregate,
    WireLen,
    EthSrc,
    EthDst,
    EthType,
    IpSrc,
    IpDst,
    IpTos,
    IpDscp,
    IpEcn,
    IpTtl,
    IpFrag,
    IpFragOff,
    IpId,
    IpSum,
    IpProto,
    IpHl,
    IpLen,
    IpCaptureLen,
    IpOpt,
    Sport,
    Dport,
    TcpSeq,
    TcpAck,
    TcpOff,
    TcpFlags,
    TcpWindow,
    TcpUrp,
    TcpOpt,
    TcpNtOpt,
    TcpSack,
    UdpLen,
    IcmpType,
    IcmpCode,
    IcmpTypeName,
    IcmpCodeName,
    IcmpFlowId,
    IcmpSeq,
    IcmpNextMtu,
    Payload,
    PayloadLen,
    PayloadMd5,
    PayloadMd5Hex,
}

/// How a field stands in a binary record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// So many bytes.
    Fixed(usize),
    /// A byte that is the length of the bytes behind it.
    Variable,
    /// Not at all.
    TextOnly,
}

/// A field of a dump.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    pub(super) name: &'static str,
    pub(super) what: What,
    pub(super) form: Form,
    /// Fields make a packet in the order of these numbers; 0: they do not.
    pub(super) order: u16,
}

impl Field {
    /// The field for a name: `ip_src`, or `ip src`, or `src`; or another name for the same, such as `ts` for `timestamp`.
    pub fn find(name: &str) -> Option<&'static Self> {
        let mut name = name.to_owned();
        loop {
            let known = SYNONYMS.iter().find(|(synonym, _)| *synonym == name).map_or(name.as_str(), |(_, field)| field);
            if let Some(field) = FIELDS.iter().find(|field| field.name == known) {
                return Some(field);
            }
            match name.find(' ') {
                Some(_) => name = name.replacen(' ', "_", 1),
                None if name.contains('_') => return None,
                None => name.insert_str(0, "ip_"),
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether binary records can hold it.
    pub fn fits_binary(&self) -> bool {
        self.form != Form::TextOnly
    }

    /// Whether its records have nanoseconds, not microseconds.
    pub(super) fn is_nano(&self) -> bool {
        self.name.ends_with("ntimestamp")
    }

    /// Whether it is about headers of the packet, which are checked first.
    pub(super) fn is_of_ip(&self) -> bool {
        self.what as u8 >= What::IpSrc as u8
    }
}

/// Stands for a field that is not known.
pub(super) static UNKNOWN: Field = Field { name: "none", what: What::None, form: Form::Fixed(0), order: 0 };

const ANNO: u16 = 100;
const LINK: u16 = 200;
const NET: u16 = 300;
const TRANSPORT: u16 = 400;
const PAYLOAD: u16 = 500;

const fn field(name: &'static str, what: What, form: Form, order: u16) -> Field {
    Field { name, what, form, order }
}

/// All of them.
pub(super) static FIELDS: &[Field] = {
    use Form::{Fixed, TextOnly, Variable};
    &[
        field("none", What::None, Fixed(0), 0),
        field("timestamp", What::Timestamp, Fixed(8), ANNO),
        field("ntimestamp", What::Timestamp, Fixed(8), ANNO),
        field("ts_sec", What::Sec, Fixed(4), ANNO),
        field("ts_usec", What::Usec, Fixed(4), ANNO),
        field("ts_usec1", What::Usec1, Fixed(8), ANNO),
        field("first_timestamp", What::FirstTimestamp, Fixed(8), ANNO),
        field("first_ntimestamp", What::FirstTimestamp, Fixed(8), ANNO),
        field("count", What::Count, Fixed(4), ANNO),
        field("link", What::Link, Fixed(1), ANNO),
        field("paint", What::Link, Fixed(1), ANNO),
        field("direction", What::Direction, Fixed(1), ANNO),
        field("aggregate", What::Aggregate, Fixed(4), ANNO),
        field("wire_len", What::WireLen, Fixed(4), ANNO),
        field("eth_src", What::EthSrc, Fixed(6), LINK),
        field("eth_dst", What::EthDst, Fixed(6), LINK),
        field("eth_type", What::EthType, Fixed(2), LINK),
        field("ip_frag", What::IpFrag, Fixed(1), NET - 2),
        field("ip_fragoff", What::IpFragOff, Fixed(2), NET - 1),
        field("ip_hl", What::IpHl, Fixed(1), NET - 1),
        field("ip_src", What::IpSrc, Fixed(4), NET),
        field("ip_dst", What::IpDst, Fixed(4), NET),
        field("ip_tos", What::IpTos, Fixed(1), NET),
        field("ip_dscp", What::IpDscp, Fixed(1), NET),
        field("ip_ecn", What::IpEcn, Fixed(1), NET),
        field("ip_ttl", What::IpTtl, Fixed(1), NET),
        field("ip_id", What::IpId, Fixed(2), NET),
        field("ip_proto", What::IpProto, Fixed(1), NET),
        field("ip_opt", What::IpOpt, Variable, NET),
        field("ip_len", What::IpLen, Fixed(4), NET + 1),
        field("ip_sum", What::IpSum, Fixed(2), NET + 2),
        field("sport", What::Sport, Fixed(2), TRANSPORT),
        field("dport", What::Dport, Fixed(2), TRANSPORT),
        field("tcp_seq", What::TcpSeq, Fixed(4), TRANSPORT),
        field("tcp_ack", What::TcpAck, Fixed(4), TRANSPORT),
        field("tcp_off", What::TcpOff, Fixed(1), TRANSPORT),
        field("tcp_flags", What::TcpFlags, Fixed(1), TRANSPORT),
        field("tcp_window", What::TcpWindow, Fixed(2), TRANSPORT),
        field("tcp_urp", What::TcpUrp, Fixed(2), TRANSPORT),
        field("tcp_opt", What::TcpOpt, Variable, TRANSPORT),
        field("tcp_ntopt", What::TcpNtOpt, Variable, TRANSPORT),
        field("tcp_sack", What::TcpSack, Variable, TRANSPORT),
        field("udp_len", What::UdpLen, Fixed(4), TRANSPORT),
        field("icmp_type", What::IcmpType, Fixed(1), TRANSPORT),
        field("icmp_type_name", What::IcmpTypeName, Fixed(1), TRANSPORT),
        field("icmp_code", What::IcmpCode, Fixed(1), TRANSPORT + 1),
        field("icmp_code_name", What::IcmpCodeName, Fixed(1), TRANSPORT + 1),
        field("icmp_flowid", What::IcmpFlowId, Fixed(2), TRANSPORT + 2),
        field("icmp_seq", What::IcmpSeq, Fixed(2), TRANSPORT + 2),
        field("icmp_nextmtu", What::IcmpNextMtu, Fixed(2), TRANSPORT + 2),
        field("payload", What::Payload, TextOnly, PAYLOAD),
        field("payload_len", What::PayloadLen, Fixed(4), PAYLOAD + 1),
        field("payload_md5", What::PayloadMd5, Fixed(16), 0),
        field("payload_md5_hex", What::PayloadMd5Hex, Fixed(16), 0),
        field("ip_capture_len", What::IpCaptureLen, Fixed(4), PAYLOAD + 2),
    ]
};

const SYNONYMS: &[(&str, &str)] = &[
    ("utimestamp", "timestamp"),
    ("ts", "timestamp"),
    ("sec", "ts_sec"),
    ("usec", "ts_usec"),
    ("usec1", "ts_usec1"),
    ("first_utimestamp", "first_timestamp"),
    ("first_ts", "first_timestamp"),
    ("pkt_count", "count"),
    ("packet_count", "count"),
    ("agg", "aggregate"),
    ("wire_length", "wire_len"),
    ("ether_src", "eth_src"),
    ("ether_dst", "eth_dst"),
    ("ether_type", "eth_type"),
    ("length", "ip_len"),
    ("ip_p", "ip_proto"),
    ("tcp_seqno", "tcp_seq"),
    ("tcp_ackno", "tcp_ack"),
    ("tcp_win", "tcp_window"),
    ("payload_length", "payload_len"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_all_their_names() {
        let name = |text: &str| Field::find(text).map(Field::name);
        for field in FIELDS {
            assert_eq!(name(field.name), Some(field.name));
            assert_eq!(name(&field.name.replace('_', " ")), Some(field.name));
        }
        for (synonym, field) in SYNONYMS {
            assert_eq!(name(synonym), Some(*field));
        }
        assert_eq!(["src", "len", "fragoff"].map(name), ["ip_src", "ip_len", "ip_fragoff"].map(Some));
        assert_eq!(["", "ip", "_", "snort", "tcp seq x", " "].map(name), [None; 6]);
    }
}
