//! ToDump: writes packets to a capture file.
//!
//! `ToDump(FILENAME [, SNAPLEN, ENCAP, USE_ENCAP_FROM, EXTRA_LENGTH, UNBUFFERED, NANO, PCAPNG])`: one input, push or pull, and
//! perhaps an output to which packets pass. FILENAME `-` is standard output; a name that ends in `.gz` makes a compressed file.
//!
//! - SNAPLEN (2000; 0: no bound): the most bytes that are written of a packet.
//! - ENCAP (ETHER): what packets begin with, such as `IP`, `SLL`, `NULL` or `#147`.
//! - USE_ENCAP_FROM: names of elements whose `encap` handlers tell it, and agree. Not with ENCAP.
//! - EXTRA_LENGTH (true): lengths count bytes that were not captured.
//! - UNBUFFERED (false): each packet is written at once.
//! - NANO (false): nanoseconds.
//! - PCAPNG (whether the name ends in `.pcapng` or `.pcapng.gz`): sections and blocks.
//!
//! A packet without a timestamp gets the time now. After a write error nothing is written any more, and it is said once.
//!
//! Handlers: `filename`, `count`, `reset_counts`, `flush` (w).
//!
//! In the place of another router, one with the same name and configuration goes on with its file; else the file begins anew.
//!
//! Different from Click: NANO does not depend on how the program was built; PCAPNG and `flush` are new.

use crate::args::{Args, Failed, Word};
use crate::capture::{LinkType, Output, PcapNgWriter, PcapOptions, PcapWriter};
use crate::element::{Element, Run, downcast};
use crate::handler::Handlers;
use crate::packet::anno;
use crate::router::Cx;
use crate::{Log, Packet};
use std::io::{self, Write};

/// The element.
#[expect(clippy::struct_excessive_bools, reason = "each is an argument")]
pub(super) struct ToDump {
    filename: String,
    snaplen: u32,
    link: LinkType,
    encap_from: Vec<String>,
    has_extra_len: bool,
    is_unbuffered: bool,
    is_nano: bool,
    is_pcapng: bool,
    file: Option<File>,
    count: u64,
}

impl Default for ToDump {
    fn default() -> Self {
        Self {
            filename: String::new(),
            snaplen: 2000,
            link: LinkType::ETHERNET,
            encap_from: Vec::new(),
            has_extra_len: true,
            is_unbuffered: false,
            is_nano: false,
            is_pcapng: false,
            file: None,
            count: 0,
        }
    }
}

/// A file that is being written.
enum File {
    Pcap(PcapWriter<Output>),
    PcapNg(PcapNgWriter<Output>),
}

impl File {
    fn new(output: Output, options: PcapOptions, is_pcapng: bool) -> io::Result<Self> {
        Ok(if is_pcapng {
            Self::PcapNg(PcapNgWriter::new(output, options)?)
        } else {
            Self::Pcap(PcapWriter::new(output, options)?)
        })
    }

    #[inline]
    fn write(&mut self, time_ns: i64, data: &[u8], wire_len: u32) -> io::Result<()> {
        match self {
            Self::Pcap(file) => file.write(time_ns, data, wire_len),
            Self::PcapNg(file) => file.write(time_ns, data, wire_len),
        }
    }

    fn output(&mut self) -> &mut Output {
        match self {
            Self::Pcap(file) => file.get_mut(),
            Self::PcapNg(file) => file.get_mut(),
        }
    }

    fn into_output(self) -> Output {
        match self {
            Self::Pcap(file) => file.into_inner(),
            Self::PcapNg(file) => file.into_inner(),
        }
    }
}

impl ToDump {
    fn write(&mut self, cx: &Cx<'_>, packet: &Packet) {
        let Some(file) = &mut self.file else { return };
        let time = if packet.timestamp().is_zero() { cx.now() } else { packet.timestamp() };
        let extra_len = if self.has_extra_len { packet.anno_u32(anno::EXTRA_LENGTH) } else { 0 };
        match file.write(time.nanos(), packet.bytes(), (packet.len() as u32).saturating_add(extra_len)) {
            Ok(()) => self.count += 1,
            Err(error) => self.fail(cx, &error),
        }
    }

    fn fail(&mut self, cx: &Cx<'_>, error: &io::Error) {
        cx.say(format_args!("ToDump({}): {error}", self.filename));
        self.file = None;
    }

    /// The link type on which the elements of USE_ENCAP_FROM agree.
    fn shared_link(&self, cx: &mut Cx<'_>) -> Result<LinkType, String> {
        let mut all = Vec::new();
        for name in &self.encap_from {
            let encap = cx.read_handler(&format!("{name}.encap"), "");
            let encap = encap.map_err(|_| format!("'{name}' has no 'encap' read handler"))?;
            let link = LinkType::parse(encap.trim());
            all.push(link.ok_or_else(|| format!("'{name}.encap' did not return a valid encapsulation type"))?);
        }
        if all.iter().all(|link| *link == all[0]) {
            return Ok(all[0]);
        }
        let lines = self.encap_from.iter().zip(&all).map(|(name, link)| format!("\n  {name} has {link}"));
        Err(format!("source encapsulation types disagree:{}", lines.collect::<String>()))
    }
}

impl Element for ToDump {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let (mut encap, mut from, mut is_pcapng) = (Word::default(), String::new(), None);
        args.must("FILENAME", &mut self.filename).may("SNAPLEN", &mut self.snaplen);
        let has_encap = args.has("ENCAP", &mut encap);
        let has_from = args.has_key("USE_ENCAP_FROM", &mut from);
        args.key("EXTRA_LENGTH", &mut self.has_extra_len).key("UNBUFFERED", &mut self.is_unbuffered);
        args.key("NANO", &mut self.is_nano).key("PCAPNG", &mut is_pcapng);
        if self.snaplen == 0 {
            self.snaplen = u32::MAX;
        }
        self.encap_from = from.split_whitespace().map(str::to_owned).collect();
        if has_from && has_encap {
            args.error("specify at most one of 'ENCAP' and 'USE_ENCAP_FROM'");
        } else if has_from && self.encap_from.is_empty() {
            args.error("element names missing after 'USE_ENCAP_FROM'");
        } else if has_encap {
            match LinkType::parse(&encap.0) {
                Some(link) => self.link = link,
                None => _ = args.error("bad encapsulation type"),
            }
        }
        for name in &self.encap_from {
            if args.cx().find(name).is_none() {
                args.error(format_args!("no element named '{name}'"));
            }
        }
        let stem = self.filename.strip_suffix(".gz").unwrap_or(&self.filename);
        self.is_pcapng = is_pcapng.unwrap_or(stem.ends_with(".pcapng"));
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        if !self.encap_from.is_empty() {
            self.link = self.shared_link(cx)?;
        }
        if cx.input_is_pull(0) && cx.outputs() == 0 {
            cx.schedule();
        }
        if cx.replaces() {
            return Ok(());
        }
        let output = Output::create(&self.filename, !self.is_unbuffered).map_err(|error| error.to_string())?;
        output.name().clone_into(&mut self.filename);
        let options = PcapOptions { link: self.link, snaplen: self.snaplen, nano: self.is_nano };
        let file = File::new(output, options, self.is_pcapng);
        self.file = Some(file.map_err(|_| format!("{}: unable to write file header", self.filename))?);
        Ok(())
    }

    fn take_state(&mut self, cx: &mut Cx<'_>, old: &mut dyn Element, log: &mut Log) {
        let Some(old) = downcast::<Self>(old).filter(|_| cx.replaces()) else { return };
        if old.link != self.link {
            log.error_here(format_args!("{}: packets have another encapsulation now", old.filename));
            return;
        }
        self.file = old.file.take();
        old.filename.clone_into(&mut self.filename);
    }

    fn action(&mut self, cx: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        self.write(cx, &packet);
        Some(packet)
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, packet: Packet) {
        self.write(cx, &packet);
        cx.emit_checked(0, packet);
    }

    fn run_task(&mut self, cx: &mut Cx<'_>) -> Run {
        if self.file.is_none() {
            return Run::Stop;
        }
        let Some(packet) = cx.pull(0) else { return Run::Idle };
        self.write(cx, &packet);
        Run::Worked
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("filename", |dump: &mut Self, _| dump.filename.clone());
        handlers.read("count", |dump: &mut Self, _| dump.count);
        handlers.button("reset_counts", |dump: &mut Self, _| dump.count = 0);
        handlers.write("flush", |dump: &mut Self, _, _| {
            let Some(file) = &mut dump.file else { return Ok(()) };
            file.output().flush().map_err(|error| format!("{}: {error}", dump.filename))
        });
    }

    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        if let Some(file) = self.file.take()
            && let Err(error) = file.into_output().finish()
        {
            cx.say(format_args!("ToDump: {error}"));
        }
    }
}
