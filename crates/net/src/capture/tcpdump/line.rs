//! What one of tcpdump's lines says, and the packet that it becomes.

use std::net::Ipv4Addr;

use crate::capture::summary::cursor::Cursor;
use crate::headers::checksum;
use crate::packet::anno;
use crate::{Packet, Timestamp};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const IP_LEN: usize = 20;

/// What a line says.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) time: Timestamp,
    pub(super) ip: [u8; IP_LEN],
    pub(super) transport: Vec<u8>,
    /// Bytes behind the headers, where the line tells them.
    pub(super) data_len: Option<u32>,
}

/// Passes over what tcpdump says of checksums and lengths.
pub(super) fn skip_notes(at: &mut Cursor<'_>, notes: &[&[u8]]) {
    while notes.iter().any(|note| at.starts_with(note)) {
        at.eat_until(b"]");
        at.eat(b" ");
    }
}

impl Line {
    /// What stands behind the addresses of UDP.
    pub(super) fn udp(&mut self, at: &mut Cursor<'_>) {
        skip_notes(at, &[b"[bad hdr", b"[udp sum ok]", b"[bad udp"]);
        if at.eat(b"udp ") {
            self.data_len = at.number();
        }
    }

    /// Puts options behind the TCP header, as far as it can have them.
    pub(super) fn options(&mut self, options: &[u8]) {
        if options.len() <= 40 {
            self.transport.truncate(20);
            self.transport.extend(options);
            self.transport[12] = ((self.transport.len() / 4) << 4) as u8;
        }
    }

    /// What stands in parentheses and brackets at the end: fields of the IP header.
    pub(super) fn trailer(&mut self, text: &str) {
        let mut rest = text.trim_end();
        while let Some(close) = rest.chars().next_back().filter(|close| [')', ']'].contains(close)) {
            let Some(open) = rest.rfind(if close == ')' { '(' } else { '[' }) else { return };
            // "ECT(0)" stands inside of parentheses.
            let open = if rest[..open].ends_with("ECT") { rest[..open].rfind('[').unwrap_or(open) } else { open };
            self.items(&rest.as_bytes()[open + 1..rest.len() - 1]);
            rest = rest[..open].trim_end();
        }
    }

    fn items(&mut self, items: &[u8]) {
        let mut at = Cursor::new(items);
        while self.item(&mut at).is_some() {
            while at.eat(b",") || at.eat(b" ") {}
        }
    }

    fn item(&mut self, at: &mut Cursor<'_>) -> Option<()> {
        if at.eat(b"tos 0x") {
            self.ip[1] = at.hex()? as u8;
        } else if at.eat(b"ECT(0)") {
            self.ip[1] = self.ip[1] & !3 | 1;
        } else if at.eat(b"ECT(1)") {
            self.ip[1] = self.ip[1] & !3 | 2;
        } else if at.eat(b"CE") {
            self.ip[1] |= 3;
        } else if at.eat(b"DF") {
            self.ip[6] |= 0x40;
        } else if at.eat(b"ttl ") {
            self.ip[8] = at.number()? as u8;
        } else if at.eat(b"id ") {
            self.set(4, at.number()?);
        } else if at.eat(b"len ") {
            self.total(at.number()?);
        } else if at.eat(b"frag ") {
            self.set(4, at.number()?);
            self.data_len = if at.eat(b":") { Some(at.number()?) } else { return None };
            let offset = if at.eat(b"@") { at.number()? } else { return None };
            let flags = u32::from(self.ip[6] & 0x40) << 8 | if at.eat(b"+") { 0x2000 } else { 0 };
            self.set(6, flags | offset >> 3 & 0x1FFF);
        } else {
            return None;
        }
        Some(())
    }

    pub(super) fn set(&mut self, place: usize, value: u32) {
        self.ip[place..place + 2].copy_from_slice(&(value as u16).to_be_bytes());
    }

    /// The packet's whole length: what headers and data leave of it are TCP options that the line does not tell.
    fn total(&mut self, total: u32) {
        let headers = (IP_LEN + self.transport.len()) as u32;
        match self.data_len {
            Some(data) if self.ip[9] == TCP && total > headers.saturating_add(data) => {
                let len = (total - data) as usize - IP_LEN;
                if len <= 60 {
                    self.transport.resize(len - len % 4, 0);
                    self.transport[12] = ((len / 4) << 4) as u8;
                }
            }
            _ => self.data_len = Some(total.saturating_sub(headers)),
        }
    }

    /// The packet, with checksums if they are wanted.
    pub(super) fn packet(mut self, checksums: bool) -> Packet {
        let is_later = u16::from_be_bytes([self.ip[6], self.ip[7]]) & 0x1FFF != 0;
        if is_later {
            // Ports are no part of such a fragment.
            self.transport.clear();
        }
        let data_len = self.data_len.unwrap_or(0).min(0xFFFF);
        let total = (IP_LEN + self.transport.len()) as u32 + data_len;
        self.set(2, total.min(0xFFFF));
        if self.ip[9] == UDP && !is_later {
            let len = (total - IP_LEN as u32).min(0xFFFF) as u16;
            self.transport[4..6].copy_from_slice(&len.to_be_bytes());
        }
        if checksums {
            self.set_checksums();
        }
        let mut packet = Packet::from_slice(&[&self.ip[..], &self.transport].concat());
        packet.set_network_header(0, IP_LEN);
        packet.set_timestamp(self.time);
        packet.set_anno_u32(anno::EXTRA_LENGTH, data_len);
        packet.set_dst_ip(Ipv4Addr::new(self.ip[16], self.ip[17], self.ip[18], self.ip[19]));
        packet
    }

    fn set_checksums(&mut self) {
        let sum = checksum::internet(&self.ip);
        self.set(10, sum.into());
        let (ip, segment) = (&self.ip, &mut self.transport);
        let source = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
        let destination = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        let is_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3FFF != 0;
        if is_fragment || segment.is_empty() {
            return;
        }
        let (place, sum) = match ip[9] {
            TCP => (16, checksum::transport(source, destination, TCP, segment)),
            _ => (6, checksum::udp(source, destination, segment)),
        };
        segment[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    }
}
