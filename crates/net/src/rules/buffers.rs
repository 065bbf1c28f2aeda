//! Names of buffers: parts of a message that contents are looked for in.

/// Those that Snort 2 writes behind a content, and Snort 3 before it.
const EITHER: &[&str] = &[
    "http_client_body",
    "http_cookie",
    "http_header",
    "http_host",
    "http_method",
    "http_raw_cookie",
    "http_raw_header",
    "http_raw_host",
    "http_raw_uri",
    "http_stat_code",
    "http_stat_msg",
    "http_uri",
    "http_user_agent",
];

/// Those that stand before contents everywhere, but for what begins as one of `PREFIXES`.
const BEFORE: &[&str] = &["base64_data", "ber_data", "file_data", "js_data", "pkt_data", "raw_data", "vba_data"];

const PREFIXES: &[&str] = &[
    "cip_",
    "dce_stub",
    "dnp3_",
    "dns_",
    "http_",
    "modbus_data",
    "s7commplus_content",
    "sip_",
    "smb_",
    "ssh_",
    "tls_",
];

/// Names like those of Snort 3's buffers that are tests.
const TESTS: &[&str] = &["http_header_test", "http_max_header_line", "http_max_trailer_line", "http_version_match"];

/// How a name says where contents are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind a content, for it alone, or before contents, for all that follow.
    Either,
    /// Before contents.
    Before,
    /// Nowhere: it names no buffer.
    Nowhere,
}

/// How an option's name says where contents are looked for.
pub(super) fn place(name: &str, value: Option<&str>) -> Place {
    if TESTS.contains(&name) || name.starts_with("http_num_") {
        return Place::Nowhere;
    }
    // Snort 3's buffers have parameters, such as the header that is meant; other options with values are tests.
    let is_plain = value.is_none();
    let is_before =
        BEFORE.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || name.contains('.');
    match name {
        name if EITHER.contains(&name) => Place::Either,
        name if is_before && (is_plain || name.starts_with("http_")) => Place::Before,
        _ => Place::Nowhere,
    }
}

/// What a content's `buffer` is: nothing for the payload.
pub(super) fn buffer(name: &str, value: Option<&str>) -> Option<String> {
    match (name, value) {
        ("pkt_data" | "raw_data", _) => None,
        (name, None) => Some(name.to_owned()),
        (name, Some(value)) => Some(format!("{name}:{value}")),
    }
}
