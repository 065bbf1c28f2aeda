//! Names of protocols and ports that the system knows: `/etc/protocols` and `/etc/services`, as Click reads them.

use std::collections::HashMap;
use std::sync::OnceLock;

/// What the files say, read once, when it is first asked for.
struct Files {
    protocols: HashMap<String, u8>,
    ports: HashMap<(u8, String), u16>,
}

static FILES: OnceLock<Files> = OnceLock::new();

fn files() -> &'static Files {
    FILES.get_or_init(|| {
        let read = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Files {
            protocols: protocols(&read("/etc/protocols").unwrap_or_default()),
            ports: ports(&read("/etc/services").unwrap_or_default()),
        }
    })
}

/// The words of each line that has some: a name, what it stands for, and other names.
fn lines(text: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    text.lines().filter_map(|line| {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        Some((value, std::iter::once(name).chain(words).collect()))
    })
}

fn protocols(text: &str) -> HashMap<String, u8> {
    let mut known = HashMap::new();
    for (value, names) in lines(text) {
        if let Ok(number) = value.parse() {
            known.extend(names.into_iter().map(|name| (name.to_owned(), number)));
        }
    }
    known
}

fn ports(text: &str) -> HashMap<(u8, String), u16> {
    let mut known = HashMap::new();
    for (value, names) in lines(text) {
        let Some((number, protocol)) = value.split_once('/') else { continue };
        let protocol = match protocol {
            "tcp" => 6,
            "udp" => 17,
            _ => continue,
        };
        if let Ok(number) = number.parse() {
            known.extend(names.into_iter().map(|name| ((protocol, name.to_owned()), number)));
        }
    }
    known
}

/// The number of a protocol.
pub(crate) fn protocol(name: &str) -> Option<u8> {
    files().protocols.get(name).copied()
}

/// The number of a port of TCP (6) or UDP (17).
pub(crate) fn port(protocol: u8, name: &str) -> Option<u16> {
    files().ports.get(&(protocol, name.to_owned())).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_names_numbers_and_comments() {
        let known =
            ports("# none\nhttp 80/tcp www # web\nhttp\t80/sctp\ndomain 53/udp\nodd x/tcp\nbig 70000/tcp\nalone\n");
        assert_eq!(known.len(), 3);
        assert_eq!(known.get(&(6, "www".to_owned())), Some(&80));
        assert_eq!(known.get(&(17, "domain".to_owned())), Some(&53));
        let known = protocols("ip 0 IP\nesp\t50\tIPSEC-ESP # comment\nodd 256\n");
        assert_eq!((known.get("IPSEC-ESP"), known.get("ip"), known.len()), (Some(&50), Some(&0), 4));
    }
}
