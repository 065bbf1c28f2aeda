//! PORT commands of FTP (RFC 959), which tell the other side an address and a port.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;

/// A PORT command at the beginning of a segment's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortCommand {
    /// Where its six numbers are in the data.
    pub numbers: Range<usize>,
    /// The address.
    pub address: Ipv4Addr,
    /// The port.
    pub port: u16,
}

impl fmt::Display for PortCommand {
    /// The six numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> =
            self.address.octets().into_iter().chain(self.port.to_be_bytes()).map(|n| n.to_string()).collect();
        f.write_str(&numbers.join(","))
    }
}

/// The PORT command that `data` begins with, if it is there with the end of its line.
pub fn find_port_command(data: &[u8]) -> Option<PortCommand> {
    let rest = data.split_at_checked(5).filter(|(word, _)| word.eq_ignore_ascii_case(b"PORT "))?.1;
    let spaces = rest.iter().take_while(|&&byte| byte == b' ').count();
    let text = &rest[spaces..];
    let len = text.iter().take_while(|&&byte| byte.is_ascii_digit() || byte == b',').count();
    if !matches!(text.get(len), Some(b'\r' | b'\n')) {
        return None;
    }
    let mut bytes = [0; 6];
    let mut words = text[..len].split(|&byte| byte == b',');
    for byte in &mut bytes {
        // No number counts as zero, as it does in Click.
        let digits = std::str::from_utf8(words.next()?).ok()?;
        *byte = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    let [a, b, c, d, high, low] = bytes;
    let (address, port) = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]));
    words.next().is_none().then_some(PortCommand { numbers: 5 + spaces..5 + spaces + len, address, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_where_they_are_whole() {
        let command = find_port_command(b"port   1,0,0,2,003,9\r\nX").unwrap();
        assert_eq!((command.numbers.clone(), command.address.octets(), command.port), (7..20, [1, 0, 0, 2], 777));
        assert_eq!(command.to_string(), "1,0,0,2,3,9");
        for text in [
            "PORT 1,0,0,2,3,9",
            "PORT 1,0,0,2,3\r\n",
            "PORT 1,0,0,2,3,9,1\r\n",
            "PORT 1,0,0,256,3,9\r\n",
            "PORT 1,0,0,2,3,9 \r\n",
            "PORT1,0,0,2,3,9\r\n",
            "PASV\r\n",
            "PORT 1,0,0,2,3,99999999999999999999999999\r\n",
            "PORT ",
            "",
        ] {
            assert_eq!(find_port_command(text.as_bytes()), None, "{text:?}");
        }
    }
}
