//! What rewriters tell, and are told, by their handlers.

use std::fmt::Write;
use std::net::Ipv4Addr;

use crate::handler::Handlers;
use crate::headers::{FlowId, ip};
use crate::rewrite::Flow;
use crate::router::Cx;

use super::core::{Kind, millis};
use super::rewriter::Rewriter;
use super::spec::{Spec, Way};

/// The handlers of a rewriter.
pub(super) fn handlers(rewriter: &Rewriter, handlers: &mut Handlers) {
    if rewriter.kind() == Kind::Ip {
        let tables = [("tcp_table", ip::PROTOCOL_TCP), ("tcp_mappings", ip::PROTOCOL_TCP)];
        for (name, protocol) in
            tables.into_iter().chain([("udp_table", ip::PROTOCOL_UDP), ("udp_mappings", ip::PROTOCOL_UDP)])
        {
            handlers.read(name, move |rewriter: &mut Rewriter, cx| table(rewriter, cx, protocol));
        }
        handlers.ask("tcp_lookup", lookup);
        handlers.hide("tcp_mappings");
        handlers.hide("udp_mappings");
    } else {
        handlers.read("table", |rewriter: &mut Rewriter, cx| table(rewriter, cx, 0));
        handlers.read("mappings", |rewriter: &mut Rewriter, cx| table(rewriter, cx, 0));
        handlers.hide("mappings");
    }
    if rewriter.kind() == Kind::Tcp {
        handlers.ask("lookup", lookup);
    }
    handlers.read("table_size", |rewriter: &mut Rewriter, _| {
        sum(rewriter, |rewriter, spec| rewriter.flows().count(spec.owner))
    });
    handlers.read("nmappings", |rewriter: &mut Rewriter, _| {
        sum(rewriter, |rewriter, spec| rewriter.flows().count(spec.owner))
    });
    handlers.hide("nmappings");
    handlers.read("mapping_failures", |rewriter: &mut Rewriter, _| {
        sum(rewriter, |rewriter, spec| rewriter.flows().failures(spec.owner))
    });
    handlers.read("patterns", |rewriter: &mut Rewriter, _| {
        (0..rewriter.specs().len()).fold(String::new(), |text, input| text + &pattern(rewriter, input) + "\n")
    });
    handlers.read("size", |rewriter: &mut Rewriter, _| rewriter.flows().len());
    handlers.read("capacity", |rewriter: &mut Rewriter, _| rewriter.flows().capacity());
    handlers.write("capacity", |rewriter: &mut Rewriter, cx, text| {
        let capacity: i32 = cx.parse(text.trim()).map_err(|error| format!("CAPACITY: {error}"))?;
        let capacity = usize::try_from(capacity).map_err(|_| "CAPACITY: must be >= 0")?;
        let mut flows = rewriter.flows();
        flows.set_capacity(capacity);
        flows.shrink(millis(cx.now()), false);
        Ok(())
    });
    handlers.button("clear", |rewriter: &mut Rewriter, cx| rewriter.flows().shrink(millis(cx.now()), true));
    for input in 0..rewriter.specs().len() {
        let name = format!("pattern{input}");
        handlers.read(&name, move |rewriter: &mut Rewriter, _| pattern(rewriter, input));
        handlers.write(&name, move |rewriter: &mut Rewriter, cx, text| {
            let spec = Spec::parse(text, cx.outputs(), &cx.arg_cx());
            let mut spec = spec.map_err(|error| format!("input spec {input}: {error}"))?;
            spec.resolve(cx);
            rewriter.set_spec(cx, input, spec);
            rewriter.check_mapper(cx, input)
        });
    }
}

fn sum(rewriter: &Rewriter, of: impl Fn(&Rewriter, &Spec) -> u32) -> u64 {
    rewriter.specs().iter().map(|spec| u64::from(of(rewriter, spec))).sum()
}

/// What an input does, and how many flows it has.
fn pattern(rewriter: &Rewriter, input: usize) -> String {
    let spec = &rewriter.specs()[input];
    let mut text = match &spec.way {
        Way::Drop => "<drop>".into(),
        Way::Pass(_) => "<nochange>".into(),
        Way::Keep => "<keep>".into(),
        Way::Pattern(which) => which.get().map_or_else(String::new, ToString::to_string),
        Way::Mapper(_) => "<mapper>".into(),
    };
    let count = rewriter.flows().count(spec.owner);
    if count > 0 {
        let _ = write!(text, " [{count}]");
    }
    text
}

/// All flows of a protocol, both directions, a line each.
fn table(rewriter: &mut Rewriter, cx: &mut Cx<'_>, protocol: u8) -> String {
    let now_ms = millis(cx.now());
    let flows = rewriter.flows();
    let mut text = String::new();
    for flow in flows.flows(rewriter.map(protocol)) {
        let input = rewriter.specs().iter().position(|spec| spec.owner == flow.owner()).unwrap_or(0);
        for reply in [false, true] {
            let (from, to) =
                (ends(rewriter.kind(), flow.key(reply), reply), ends(rewriter.kind(), flow.rewritten(reply), reply));
            let _ = writeln!(text, "{from} => {to}{}{}", moved(flow, reply), ports(flow, reply, input, now_ms));
        }
    }
    text
}

fn ends(kind: Kind, flow: FlowId, reply: bool) -> String {
    let FlowId { source, source_port, destination, destination_port } = flow;
    match kind {
        Kind::Address => if reply { destination } else { source }.to_string(),
        Kind::Pair => format!("({source}, {destination})"),
        Kind::Ping => format!("({source}, {destination}, {})", if reply { destination_port } else { source_port }),
        Kind::Ip | Kind::Tcp | Kind::Udp => flow.to_string(),
    }
}

/// By how much sequence numbers moved.
fn moved(flow: &Flow, reply: bool) -> String {
    match flow.deltas().map_or(0, |deltas| deltas.last(reply)) {
        0 => String::new(),
        delta => format!(" seq {delta:+}"),
    }
}

/// Outputs of both directions, the input that the flow came from, and when it ends.
fn ports(flow: &Flow, reply: bool, input: usize, now_ms: u64) -> String {
    let star = |here: bool| if here { "*" } else { "" };
    let (forward, back) = (flow.output(false), flow.output(true));
    let seconds = (flow.expiry_ms() as i64 + 500 - now_ms as i64).div_euclid(1000);
    format!(" [{}{forward} {}{back}] i{input} exp{seconds}", star(!reply), star(reply))
}

/// What a flow becomes: `SADDR SPORT DADDR DPORT`.
fn lookup(rewriter: &mut Rewriter, cx: &mut Cx<'_>, text: &str) -> Result<String, String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let [source, source_port, destination, destination_port] = *words else {
        return Err("syntax error, expected SADDR SPORT DADDR DPORT".into());
    };
    let address = |name: &str, text: &str| cx.parse::<Ipv4Addr>(text).map_err(|error| format!("{name}: {error}"));
    let port = |name: &str, text: &str| cx.parse::<u16>(text).map_err(|error| format!("{name}: {error}"));
    let flow = FlowId {
        source: address("SADDR", source)?,
        source_port: port("SPORT", source_port)?,
        destination: address("DADDR", destination)?,
        destination_port: port("DPORT", destination_port)?,
    };
    let flows = rewriter.flows();
    let Some(entry) = flows.find(rewriter.map(ip::PROTOCOL_TCP), flow) else { return Ok(String::new()) };
    let FlowId { source, source_port, destination, destination_port } = flows.flow(entry).rewritten(entry.reply);
    Ok(format!("{source} {source_port} {destination} {destination_port}"))
}
