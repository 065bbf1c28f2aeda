//! The applications, as configurations, and their packets.

use super::super::classbench::{Flow, Rule};
use super::super::memory::Traffic;
use super::options::{App, Options, Text};
use crate::error::{Error, Result};
use std::fmt::Write;
use std::net::Ipv4Addr;
use tempfile::NamedTempFile;

/// Bytes of all frames that are drawn.
const DRAWN: usize = 8 << 20;
/// Lengths of frames of the simple IMIX, seven, four and one of them.
const IMIX: [usize; 12] = [60, 60, 60, 60, 60, 60, 60, 590, 590, 590, 590, 1514];

/// Tables that configurations name or have.
pub(super) struct Files {
    ids: NamedTempFile,
    sdn: NamedTempFile,
    routes: Vec<(u32, u32)>,
    /// Those of the flow table whose packets can be drawn.
    rules: Vec<Rule>,
    pub(super) literals: usize,
    pub(super) flows: usize,
}

fn write(lines: &str) -> Result<NamedTempFile> {
    let failed = |error: std::io::Error| Error::system("a file of rules", "writing", error);
    let file = NamedTempFile::new().map_err(failed)?;
    std::fs::write(file.path(), lines).map_err(failed)?;
    Ok(file)
}

impl Files {
    pub(super) fn new(options: &Options) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(options.seed ^ 0x7461_626c_6573);
        let read = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path).map_err(|error| Error::system(path.display(), "reading", error))
        };
        let ids = match &options.ids_rules {
            Some(path) => read(path)?,
            None => literals(&mut random, options.literals),
        };
        let sdn = match &options.flow_rules {
            Some(path) => with_ports(&read(path)?),
            None => with_ports(&flows(&mut random, options.flows)),
        };
        let routes = (0..options.routes).map(|_| {
            let len = [24, 24, 24, 24, 24, 24, 23, 22, 22, 20, 16][random.usize(..11)];
            (random.u32(1 << 24..) & (u32::MAX << (32 - len)), len)
        });
        let count = |text: &str| text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
        let (literals, flows) = (count(&ids), count(&sdn));
        let rules = sdn.lines().filter_map(Rule::parse).collect();
        Ok(Self { routes: routes.collect(), rules, ids: write(&ids)?, sdn: write(&sdn)?, literals, flows })
    }

    fn routes(&self) -> String {
        let mut text = "0.0.0.0/0 0".to_owned();
        for (number, (address, len)) in self.routes.iter().enumerate() {
            let _ = write!(text, ", {}/{len} {}", Ipv4Addr::from(*address), number % 4);
        }
        text
    }

    fn sdn(&self) -> std::path::Display<'_> {
        self.sdn.path().display()
    }

    fn ids(&self) -> std::path::Display<'_> {
        self.ids.path().display()
    }
}

/// Rules with a literal each, of lengths that rules of Snort have.
fn literals(random: &mut fastrand::Rng, count: usize) -> String {
    (1..=count).fold(String::new(), |mut text, sid| {
        let len = random.usize(6..28);
        let word: String = (0..len).map(|_| random.alphanumeric()).collect();
        let _ = writeln!(text, "alert tcp any any -> any any (msg:\"{sid}\"; content:\"{word}\"; sid:{sid};)");
        text
    })
}

/// Filters that say nothing of where packets go send every other one to output 1.
fn with_ports(rules: &str) -> String {
    rules.lines().enumerate().fold(String::new(), |mut text, (number, line)| {
        let is_filter = line.starts_with('@') && !line.contains("=>");
        let _ = if is_filter { writeln!(text, "{line} => {}", number % 2) } else { writeln!(text, "{line}") };
        text
    })
}

/// Rules of `ClassBench`'s form.
fn flows(random: &mut fastrand::Rng, count: usize) -> String {
    (0..count).fold(String::new(), |mut text, _| {
        let net = |random: &mut fastrand::Rng| {
            let len = random.u32(12..=32);
            format!("{}/{len}", Ipv4Addr::from(random.u32(..) & (u32::MAX << (32 - len))))
        };
        let (low, high) = match random.u8(..4) {
            0 => (0, u16::MAX),
            1 => (1024, u16::MAX),
            _ => {
                let port = random.u16(..);
                (port, port)
            }
        };
        let (from, to, proto) = (net(random), net(random), [6, 17][random.usize(..2)]);
        let _ = writeln!(text, "@{from} {to} 0 : 65535 {low} : {high} {proto:#04x}/0xff");
        text
    })
}

impl App {
    fn has_flows(self) -> bool {
        matches!(self, Self::Forward | Self::Sdn | Self::Full | Self::United | Self::Diverging)
    }

    /// The CPU's elements of a thread.
    pub(super) fn by_elements(self, files: &Files, core: usize) -> String {
        let has_routes = matches!(self, Self::Route | Self::Forward | Self::Dpi | Self::Full);
        let mut text = format!("StaticThreadSched(s{core} {core}); s{core} :: BenchSource; t{core} :: BenchSink;\n");
        if has_routes {
            let _ = writeln!(text, "r{core} :: DirectIPLookup({});", files.routes());
            (0..4).for_each(|output| _ = write!(text, "r{core}[{output}] -> t{core}; "));
        }
        if self.has_flows() {
            let _ = writeln!(text, "c{core} :: SDNClassifier(RULES {});", files.sdn());
        }
        let ids = format!("IDSMatcher(RULES {})", files.ids());
        let flows = |to: &str| (0..3).map(|output| format!("c{core}[{output}] -> {to}; ")).collect::<Vec<_>>().concat();
        let (check, mark) = ("CheckIPHeader -> DecIPTTL", "MarkIPHeader");
        let source = format!("s{core} -> Strip(14)");
        let chain = match self {
            Self::Route => format!("{source} -> {check} -> r{core};"),
            Self::Forward => format!("{source} -> {check} -> c{core}; {}", flows(&format!("r{core}"))),
            Self::Sdn => format!("{source} -> {mark} -> c{core}; {}", flows(&format!("t{core}"))),
            Self::Dpi => format!("{source} -> {check} -> {ids} -> r{core};"),
            Self::Ids => format!("{source} -> {mark} -> {ids} -> t{core};"),
            Self::Full => {
                format!("i{core} :: {ids} -> r{core}; {source} -> {check} -> c{core}; {}", flows(&format!("i{core}")))
            }
            Self::United => {
                format!("i{core} :: {ids} -> t{core}; {source} -> {mark} -> c{core}; {}", flows(&format!("i{core}")))
            }
            Self::Diverging => format!(
                "i{core} :: {ids} -> t{core}; j{core} :: {ids} -> t{core}; {source} -> {mark} -> c{core};
                 c{core}[0] -> i{core}; c{core}[1] -> j{core}; c{core}[2] -> j{core};"
            ),
        };
        text + &chain + "\n"
    }

    /// A path of a thread.
    pub(super) fn by_path(
        self,
        files: &Files,
        core: usize,
        [size, batches]: [usize; 2],
        place: &str,
        slices: bool,
    ) -> String {
        let (sdn, ids) = (files.sdn(), files.ids());
        let table = |letter: &str, own: String| if core == 0 { own } else { format!("TABLE {letter}0") };
        let check = "GPUCheckIPHeader -> GPUDecIPTTL";
        let lookup = || format!("r{core} :: GPUIPLookup({})", table("r", files.routes()));
        let flow = |more: &str| format!("c{core} :: GPUSDNClassifier({}{more})", table("c", format!("RULES {sdn}")));
        let search = |letter: &str, more: &str| {
            format!("{letter}{core} :: GPUIDSMatcher({}{more})", table(letter, format!("RULES {ids}")))
        };
        let (elements, mark) = match self {
            Self::Route => (format!("{check} -> {}", lookup()), ""),
            Self::Forward => (format!("{check} -> {} -> {}", flow(", ANNO 17"), lookup()), ""),
            Self::Sdn => (flow(""), "MarkIPHeader -> "),
            Self::Dpi => (format!("{check} -> {} -> {}", search("i", ", ANNO 17"), lookup()), ""),
            Self::Ids => (search("i", ""), "MarkIPHeader -> "),
            Self::Full => {
                (format!("{check} -> {} -> {} -> {}", flow(", ANNO 19"), search("i", ", ANNO 17"), lookup()), "")
            }
            Self::United => {
                (format!("{} -> {}", flow(", ANNO 19, MISS 1"), search("i", ", ANNO 17")), "MarkIPHeader -> ")
            }
            Self::Diverging => (
                format!(
                    "{} -> {} -> {}",
                    flow(", ANNO 19, MISS 1"),
                    search("i", ", ANNO 17, CHK_ANNO 19, CHK_VALUE 0"),
                    search("j", ", ANNO 17, CHK_ANNO 19, CHK_VALUE 1")
                ),
                "MarkIPHeader -> ",
            ),
        };
        let threads: String =
            ["s", "b", "q", "d"].iter().fold(String::new(), |text, name| text + &format!("{name}{core} {core}, "));
        let threads = threads.trim_end_matches(", ");
        format!(
            "StaticThreadSched({threads}); s{core} :: BenchSource -> Strip(14) -> {mark} b{core} :: Batcher({size}, SLICING {slices})
             -> HostToDeviceMemcpy({place}) -> {elements} -> DeviceToHostMemcpy -> q{core} :: GPUCompletionQueue({batches}) -> d{core} :: Debatcher
             -> BenchSink;\n"
        )
    }
}

/// Frames of one length, or of the lengths of IMIX. Where the application has flow rules, three of four meet one of them, drawn
/// alike; all others go by a route.
pub(super) fn traffic(options: &Options, app: App, files: &Files, frame_bytes: usize) -> Result<Traffic> {
    if frame_bytes != 0 && frame_bytes < 60 {
        return Err(Error::failed(frame_bytes, "a frame has at least 60 bytes"));
    }
    let mut random = fastrand::Rng::with_seed(options.seed ^ frame_bytes as u64);
    let mut traffic = Traffic::default();
    while traffic.frames.len() < DRAWN {
        let bytes = if frame_bytes == 0 { IMIX[random.usize(..IMIX.len())] } else { frame_bytes };
        let rule = random.choice(&files.rules).filter(|_| app.has_flows() && random.u8(..4) > 0);
        let flow = match rule {
            Some(rule) => rule.flow(&mut random),
            None => routed(&mut random, files),
        };
        frame(&mut random, options.text, flow, bytes, &mut traffic.frames);
        traffic.ends.push(traffic.frames.len());
    }
    Ok(traffic)
}

/// From anywhere to an address that there is a route for.
fn routed(random: &mut fastrand::Rng, files: &Files) -> Flow {
    let to = match random.choice(&files.routes) {
        Some((address, len)) => address | random.u32(..) & u32::MAX.checked_shr(*len).unwrap_or(0),
        None => random.u32(..),
    };
    let ports = [random.u16(..), random.u16(..)];
    Flow { from: random.u32(..), to, ports, protocol: [6, 17][random.usize(..2)] }
}

fn frame(random: &mut fastrand::Rng, text: Text, flow: Flow, bytes: usize, frames: &mut Vec<u8>) {
    let start = frames.len();
    frames.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 7, 8, 0]);
    let ip_bytes = (bytes - 14) as u16;
    frames.extend([0x45, 0]);
    frames.extend(ip_bytes.to_be_bytes());
    frames.extend(random.u16(..).to_be_bytes());
    frames.extend([0, 0, 64, flow.protocol, 0, 0]);
    frames.extend(flow.from.to_be_bytes());
    frames.extend(flow.to.to_be_bytes());
    let sum = bifolio_net::headers::checksum::internet(&frames[start + 14..]);
    frames[start + 24..start + 26].copy_from_slice(&sum.to_be_bytes());
    frames.extend(flow.ports.map(u16::to_be_bytes).concat());
    if flow.protocol == 17 {
        frames.extend((ip_bytes - 20).to_be_bytes());
        frames.extend([0, 0]);
    } else {
        frames.extend([0; 8]);
        frames.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    }
    frames.truncate(start + bytes);
    while frames.len() < start + bytes {
        match text {
            Text::Random => frames.push(random.u8(..)),
            Text::Http => http(random, frames),
        }
    }
    frames.truncate(start + bytes);
}

/// A line of a request or an answer, or a piece of a page.
fn http(random: &mut fastrand::Rng, into: &mut Vec<u8>) {
    const WORDS: [&str; 24] = [
        "index", "images", "static", "en", "article", "page", "the", "of", "search", "user", "login", "cart", "item",
        "news", "and", "style", "main", "script", "api", "v1", "data", "list", "view", "home",
    ];
    let word = |random: &mut fastrand::Rng| WORDS[random.usize(..WORDS.len())];
    let line = match random.u8(..8) {
        0 => format!("GET /{}/{}.html?id={} HTTP/1.1\r\n", word(random), word(random), random.u32(..)),
        1 => format!("Host: www.{}{}.example.com\r\n", word(random), random.u8(..)),
        2 => "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n".to_owned(),
        3 => format!("Cookie: session={:016x}; theme={}\r\n", random.u64(..), word(random)),
        4 => "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n".to_owned(),
        _ => {
            let mut text = format!("<p class=\"{}\">", word(random));
            (0..random.usize(4..16)).for_each(|_| _ = write!(text, "{} ", word(random)));
            text + "</p>\n"
        }
    };
    into.extend(line.bytes());
}
