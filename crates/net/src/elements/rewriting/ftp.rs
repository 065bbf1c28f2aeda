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

use super::rewriter::{CLASS_NAMES, Rewriter};

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
