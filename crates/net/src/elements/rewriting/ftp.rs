//! FTPPortMapper: lets FTP through a rewriter.
//!
//! `FTPPortMapper(CONTROL_REWRITER, DATA_REWRITER, DATA_REWRITER_INPUT)`: push or pull. Watches FTP's control packets, which
//! go on through CONTROL_REWRITER (TCPRewriter or IPRewriter), for PORT commands at the beginning of their data. For each,
//! DATA_REWRITER makes a flow as if a packet from the address and port of the command to the server's data port (the control
//! port minus 1) had come to its input DATA_REWRITER_INPUT, and the command gets the address and port that the flow has
//! outside. As it may become longer or shorter, CONTROL_REWRITER moves sequence numbers from there on. The packet's own
//! addresses and ports stay for CONTROL_REWRITER to change.
//!
//! Unlike Click: checksums are adjusted, so that wrong ones stay wrong, and a command whose packet would become longer than a
//! packet can be is left alone.

use crate::Packet;
use crate::args::{Args, ElementRef, Failed};
use crate::element::Element;
use crate::headers::checksum::{Sum, adjust16};
use crate::headers::{FlowId, Ip, IpMut, Tcp, TcpMut, ip, tcp};
use crate::rewrite::{PortCommand, find_port_command};
use crate::router::Cx;

use super::core::CLASS_NAMES;
use super::rewriter::Rewriter;

/// The classes whose sequence numbers can move.
const CONTROL: [&str; 2] = ["IPRewriter", "TCPRewriter"];

/// The element.
#[derive(Default)]
pub(super) struct FtpPortMapper {
    control: ElementRef,
    data: ElementRef,
    input: usize,
}

/// A PORT command in a packet: where its segment and its data begin, and of which flow it is.
struct Found {
    segment_at: usize,
    data_at: usize,
    data_len: usize,
    sequence: u32,
    flow: FlowId,
    command: PortCommand,
}

fn find(bytes: &[u8]) -> Option<Found> {
    let ip = Ip::checked(bytes).filter(|ip| ip.protocol() == ip::PROTOCOL_TCP)?;
    let tcp = Tcp::new(ip.payload()).filter(|tcp| tcp.header_len() >= tcp::LEN)?;
    let command = find_port_command(tcp.payload())?;
    Some(Found {
        segment_at: ip.header_len(),
        data_at: ip.header_len() + tcp.header_len(),
        data_len: tcp.payload().len(),
        sequence: tcp.sequence(),
        flow: FlowId::of(ip)?,
        command,
    })
}

/// Puts other numbers into a command. The packet ends with its IP packet.
fn replace(packet: &mut Packet, found: &Found, numbers: &str) -> Option<()> {
    let segment = packet.network_header()?.get(found.segment_at..)?;
    let (old_len, old_sum) = (segment.len(), Sum::default().with(segment).folded());
    let (begin, end) = (found.data_at + found.command.numbers.start, found.data_at + found.command.numbers.end);
    let tail = packet.network_header()?.get(end..)?.to_vec();
    packet.take(tail.len() + end - begin);
    let new = [numbers.as_bytes(), &tail].concat();
    let len = packet.len();
    packet.put(new.len()).get_mut(len..)?.copy_from_slice(&new);
    let bytes = packet.network_header_mut()?;
    let total_len = bytes.len() as u16;
    let mut header = IpMut::new(bytes)?;
    let sum = adjust16(header.get().checksum(), header.get().total_len(), total_len);
    header.set_total_len(total_len);
    header.set_checksum(sum);
    let segment = bytes.get_mut(found.segment_at..)?;
    // The pseudo-header has the segment's length.
    let (new_len, new_sum) = (segment.len(), Sum::default().with(segment).folded());
    let mut header = TcpMut::new(segment)?;
    let sum = adjust16(header.get().checksum(), old_len as u16, new_len as u16);
    header.set_checksum(adjust16(sum, old_sum, new_sum));
    Some(())
}

impl FtpPortMapper {
    fn map(&self, cx: &mut Cx<'_>, packet: &mut Packet) -> Option<()> {
        let found = find(packet.network_header()?)?;
        let total_len = Ip::new(packet.network_header()?)?.total_len();
        let (ElementRef(control), ElementRef(data)) = (self.control, self.data);
        let flow = |rewriter: &mut Rewriter, cx: &mut Cx<'_>| rewriter.mapping(cx, ip::PROTOCOL_TCP, found.flow, None);
        let before = cx.with(control, flow).flatten()?;
        let FlowId { destination, destination_port, .. } = found.flow;
        let PortCommand { address, port, .. } = found.command;
        let wanted = FlowId::new(address, port, destination, destination_port.wrapping_sub(1));
        let input = self.input;
        let make = |rewriter: &mut Rewriter, cx: &mut Cx<'_>| {
            let made = rewriter.mapping(cx, ip::PROTOCOL_TCP, wanted, Some(input))?;
            rewriter.flows().flow_mut(made.entry).reply_anno = before.reply_anno;
            Some(made.rewritten)
        };
        let outside = cx.with(data, make).flatten()?;
        let told =
            PortCommand { address: outside.source, port: outside.source_port, ..found.command.clone() }.to_string();
        let change = told.len() as i32 - found.command.numbers.len() as i32;
        u16::try_from(i32::from(total_len) + change).ok()?;
        let move_numbers = |rewriter: &mut Rewriter, cx: &mut Cx<'_>| {
            // The flow is looked up again: the new one may have ended it.
            let entry = rewriter.mapping(cx, ip::PROTOCOL_TCP, found.flow, None)?.entry;
            let from = found.sequence.wrapping_add(found.data_len as u32);
            rewriter.flows().flow_mut(entry).deltas_mut().update(entry.reply, from, change);
            Some(())
        };
        cx.with(control, move_numbers).flatten()?;
        let surplus = packet.network_header()?.len() - usize::from(total_len);
        packet.take(surplus);
        replace(packet, &found, &told)
    }
}

impl Element for FtpPortMapper {
    /// It looks at flows that rewriters have, and makes some, before the packet comes to them.
    fn shares(&self) -> Vec<usize> {
        vec![self.control.0, self.data.0]
    }

    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut input = 0i32;
        args.must("CONTROL_REWRITER", &mut self.control).must("DATA_REWRITER", &mut self.data);
        args.must("DATA_REWRITER_INPUT", &mut input).finish()?;
        let class = |element: ElementRef| args.cx().elements.class(element.0);
        if !CONTROL.contains(&class(self.control)) {
            return Err(args.error_of("CONTROL_REWRITER", "element is not a TCPRewriter"));
        }
        if !CLASS_NAMES.contains(&class(self.data)) {
            return Err(args.error_of("DATA_REWRITER", "element is not an IP rewriter"));
        }
        let inputs = args.cx().elements.ports(self.data.0).0;
        self.input = match usize::try_from(input).ok().filter(|&input| input < inputs) {
            Some(input) => input,
            None => return Err(args.error("DATA_REWRITER_INPUT out of range")),
        };
        Ok(())
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let ElementRef(control) = self.control;
        if !cx.downstream(Some(0), |element| element == control).contains(&control) {
            let name = cx.router().declaration(control);
            cx.say(format_args!("{}: warning: control packet rewriter '{name}' is not downstream", cx.declaration()));
        }
        Ok(())
    }

    fn action(&mut self, cx: &mut Cx<'_>, mut packet: Packet) -> Option<Packet> {
        self.map(cx, &mut packet);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{packet, text};
    use super::*;
    use crate::elements::testing::Harness;
    use crate::headers::checksum;

    /// A TCP segment by sequence number, acknowledgement and data, with options (a multiple of 4 bytes).
    fn segment(flow: &str, sequence: u32, acknowledged: u32, data: &[u8], options: &[u8]) -> Packet {
        let mut packet = packet(flow, &[options, data].concat());
        let bytes = packet.bytes_mut();
        let mut header = TcpMut::new(&mut bytes[20..]).unwrap();
        header.set_sequence(sequence);
        header.set_acknowledgement(acknowledged);
        header.set_header_len(tcp::LEN + options.len());
        header.set_checksum(0);
        let ip = Ip::new(bytes).unwrap();
        let sum = checksum::transport(ip.source(), ip.destination(), ip::PROTOCOL_TCP, &bytes[20..]);
        TcpMut::new(&mut bytes[20..]).unwrap().set_checksum(sum);
        packet
    }

    #[test]
    fn ftp_commands_are_rewritten_and_sequence_numbers_move() {
        let mut harness = Harness::new(
            "IPRewriterPatterns(pat 1.0.0.1 1024-65535# - -); rw :: TCPRewriter(pattern pat 0 0);
             give :: Give -> FTPPortMapper(rw, rw, 0) -> rw -> take :: Take",
        );
        let (out, back) = ("T 200.200.200.200 30 2.0.0.2 21", "T 2.0.0.2 21 1.0.0.1 1024");
        let mut pass = |flow: &str, sequence: u32, acknowledged: u32, data: &str, options: &[u8]| {
            harness.give("give", [segment(flow, sequence, acknowledged, data.as_bytes(), options)]);
            let packet = harness.take("take").remove(0);
            text(&packet);
            let tcp = Tcp::new(&packet.bytes()[20..]).unwrap();
            let options = tcp.options().as_bytes().to_vec();
            (tcp.sequence(), tcp.acknowledgement(), String::from_utf8(tcp.payload().to_vec()).unwrap(), options)
        };
        let sack = |from: u32, to: u32| [&[1, 1, 5, 10][..], &from.to_be_bytes(), &to.to_be_bytes()].concat();
        let (none, x) = (Vec::new(), || "x".to_owned());
        assert_eq!(pass(out, 0, 0, "x", &[]), (0, 0, x(), none.clone()));
        let told = |port: u8| format!("PORT 1,0,0,1,4,{port}\n");
        assert_eq!(pass(out, 1, 0, "PORT 200,200,200,200,200,200\n", &[]), (1, 0, told(1), none.clone()));
        assert_eq!(pass(out, 30, 0, "fubar\n", &[]), (18, 0, "fubar\n".into(), none.clone()));
        assert_eq!(pass(out, 0, 0, "x", &[]), (0, 0, x(), none.clone()));
        for (given, expected) in [(0, 0), (1, 1), (18, 30)] {
            assert_eq!(pass(back, 0, given, "", &[]), (0, expected, String::new(), none.clone()));
        }
        assert_eq!(pass(back, 0, 0, "", &sack(1, 18)).3, sack(1, 30));
        assert_eq!(pass(back, 0, 0, "", &sack(18, 20)).3, sack(30, 32));
        assert_eq!(pass(out, 36, 0, "PORT 200,200,200,200,200,201\n", &[]), (24, 0, told(2), none.clone()));
        assert_eq!(pass(out, 65, 0, "fobar\n", &[]), (41, 0, "fobar\n".into(), none.clone()));
        assert_eq!(pass(out, 30, 0, "fubar\n", &[]), (18, 0, "fubar\n".into(), none.clone()));
        assert_eq!(pass(back, 0, 0, "", &sack(1, 45)).3, sack(1, 69));
        // The other direction.
        assert_eq!(pass(back, 0, 0, "PORT 100,100,100,100,100,100\n", &[]), (0, 0, told(3), none.clone()));
        assert_eq!(pass(out, 71, 17, "", &[]), (47, 29, String::new(), none.clone()));
        // Long after, one difference holds for all.
        assert_eq!(pass(out, 1_100_000_000, 0, "1G", &[]).0, 1_099_999_976);
        assert_eq!(pass(out, 0, 0, "x", &[]).0, 4_294_967_272);
        assert_eq!(pass(back, 1_100_000_000, 0, "", &[]), (1_099_999_988, 24, String::new(), none.clone()));
        assert_eq!(pass(back, 0, 0, "", &[]), (4_294_967_284, 24, String::new(), none));
        assert!(harness.read("rw.table").contains(" seq -24 [*0 0] i0"));
        // The data connection, which the server begins.
        harness.give("give", [packet("T 2.0.0.2 20 1.0.0.1 1026", b"")]);
        assert_eq!(text(&harness.take("take")[0]), "T 2.0.0.2 20 200.200.200.200 51401");
        assert_eq!(harness.read("rw.lookup 200.200.200.200 51400 2.0.0.2 20"), "1.0.0.1 1025 2.0.0.2 20");
    }

    #[test]
    fn ftp_leaves_alone_what_is_no_command_or_no_flow() {
        let config = "rw :: TCPRewriter(pattern 1.0.0.1 1024# - - 0 0); Give -> rw -> Take";
        let config = config.replace("1024#", "1024-2000#");
        let mut harness = Harness::new(&format!("{config}; give :: Give -> FTPPortMapper(rw, rw, 0) -> take :: Take"));
        assert_eq!(harness.said().len(), 0);
        let command = segment("T 5.5.5.5 30 2.0.0.2 21", 0, 0, b"PORT 5,5,5,5,1,1\r\n", &[]);
        let others = [
            command,
            packet("U 1.0.0.1 1 2.0.0.2 2", b"PORT 5,5,5,5,1,1\r\n"),
            packet("T 5.5.5.5 3 2.0.0.2 21", b"PASV\r\n"),
        ];
        harness.give("give", others.clone());
        assert_eq!(harness.take_bytes("take"), others.map(|packet| packet.bytes().to_vec()));
        let errors = |config: &str| {
            let rewriters =
                "rw :: TCPRewriter(drop); u :: UDPRewriter(drop); Give -> rw -> Take; Give -> u -> t :: Take";
            Harness::errors(&format!("{rewriters}; Give -> FTPPortMapper({config}) -> Take"))
        };
        assert!(errors("u, rw, 0").contains("CONTROL_REWRITER: element is not a TCPRewriter"));
        assert!(errors("rw, t, 0").contains("DATA_REWRITER: element is not an IP rewriter"));
        assert!(errors("rw, u, 1").contains("DATA_REWRITER_INPUT out of range"));
        assert!(errors("rw, nix, 0").contains("no element named 'nix'"));
        assert!(errors("rw, u").contains("DATA_REWRITER_INPUT: required argument missing"));
    }
}
