//! ICMPRewriter: rewrites ICMP errors about packets that were rewritten.
//!
//! `ICMPRewriter(MAPS [, DST_ANNO, REPLY_ANNO])`: push; 1 or more outputs. MAPS are names of rewriters, with spaces between
//! them, which are asked in turn for the flow of the packet inside an ICMP error. Where one knows it, the packet inside and
//! the error's destination are rewritten back, so that the error is about the packet as it was sent, and the error leaves by
//! output 0, or, for a rewriter that is written `NAME:OFFSET`, by OFFSET plus the output of replies. ICMP packets that are not
//! rewritten leave by output 1, if there is one and no rewriter has an offset; others are dropped.
//!
//! DST_ANNO (true): the destination annotation becomes the new destination. REPLY_ANNO: a byte of annotations that the error
//! gets as the flow's first packet had it.

use crate::Packet;
use crate::args::{AnnoArg, Args, Failed, Raw};
use crate::element::Element;
use crate::headers::{Ip, ip};
use crate::lang::config::split_words;
use crate::rewrite::{Embedded, rewrite_embedded};
use crate::router::Cx;

use super::core::CLASS_NAMES;
use super::rewriter::{Mapping, Rewriter};

/// The element.
pub(super) struct IcmpRewriter {
    /// Rewriters, and where their outputs begin here.
    maps: Vec<(usize, Option<usize>)>,
    sets_destination: bool,
    reply_anno: Option<AnnoArg<1>>,
}

impl Default for IcmpRewriter {
    fn default() -> Self {
        Self { maps: Vec::new(), sets_destination: true, reply_anno: None }
    }
}

impl IcmpRewriter {
    fn add(&mut self, args: &mut Args<'_>, word: &str) {
        let cx = args.cx();
        let (name, offset) = match word.split_once(':') {
            Some((name, offset)) => (name, Some(offset.parse::<usize>().ok())),
            None => (word, None),
        };
        let found = cx.find(name).filter(|&element| CLASS_NAMES.contains(&cx.elements.class(element)));
        let (Some(element), Ok(offset)) = (found, offset.map_or(Ok(None), |offset| offset.map(Some).ok_or(()))) else {
            args.error(format_args!("{word} not an IP rewriter"));
            return;
        };
        let outputs = cx.elements.number(cx.element).map_or(1, |number| cx.elements.ports(number).1);
        if offset.is_some_and(|offset| offset.saturating_add(cx.elements.ports(element).1) > outputs) {
            let word_for = if outputs == 1 { "output" } else { "outputs" };
            args.error(format_args!("{word} port offset requires more than {outputs} {word_for}"));
            return;
        }
        self.maps.push((element, offset));
    }

    /// The first rewriter's mapping, and where packets of it leave.
    fn mapping(&self, cx: &mut Cx<'_>, embedded: &Embedded) -> Option<(Mapping, usize)> {
        self.maps.iter().find_map(|&(element, offset)| {
            let find = |rewriter: &mut Rewriter, cx: &mut Cx<'_>| {
                rewriter.mapping(cx, embedded.protocol, embedded.reply, None)
            };
            let mapping = cx.with(element, find).flatten()?;
            Some((mapping, offset.map_or(0, |offset| offset + mapping.output)))
        })
    }

    fn rewrite(&self, cx: &mut Cx<'_>, packet: &mut Packet) -> Option<usize> {
        let embedded = Embedded::of(packet.network_header()?)?;
        let (mapping, output) = self.mapping(cx, &embedded)?;
        let destination = rewrite_embedded(packet.network_header_mut()?, &embedded, mapping.rewritten);
        if let Some(destination) = destination.filter(|_| self.sets_destination) {
            packet.set_dst_ip(destination);
        }
        if let Some(AnnoArg(at)) = self.reply_anno.filter(|_| mapping.entry.reply) {
            packet.set_anno_u8(at, mapping.reply_anno);
        }
        Some(output)
    }
}

impl Element for IcmpRewriter {
    /// It looks at flows that rewriters have, which other packets of a burst change.
    fn shares(&self) -> Vec<usize> {
        self.maps.iter().map(|&(element, _)| element).collect()
    }

    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut maps = Raw::default();
        args.must("MAPS", &mut maps)
            .key("DST_ANNO", &mut self.sets_destination)
            .key("REPLY_ANNO", &mut self.reply_anno);
        args.finish()?;
        for word in split_words(&maps.0) {
            self.add(args, &word);
        }
        args.result()?;
        if self.maps.is_empty() {
            return Err(args.error("no IP rewriters supplied"));
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, _: usize, mut packet: Packet) {
        let is_icmp = packet.network_header().and_then(Ip::new).is_some_and(|ip| ip.protocol() == ip::PROTOCOL_ICMP);
        if !is_icmp {
            return;
        }
        match self.rewrite(cx, &mut packet) {
            Some(output) => _ = cx.emit_checked(output, packet),
            None if self.maps.iter().all(|(_, offset)| offset.is_none()) => _ = cx.emit_checked(1, packet),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{address, packet};
    use crate::elements::testing::Harness;
    use crate::headers::{Ip, checksum};

    #[test]
    fn errors_come_back_to_the_sender() {
        for kind in ["T 18.26.4.44 20 10.0.0.8 80", "U 18.26.4.44 20 10.0.0.8 80", "ping 18.26.4.44 10 10.0.0.8 10"] {
            let mut harness = Harness::new(
                "ip :: IPRewriter(pattern 21.0.0.1 1024-65535# - - 0 0, REPLY_ANNO PAINT);
                 icmp :: ICMPPingRewriter(pattern 21.0.0.1 - 0-65535 0 0, REPLY_ANNO PAINT);
                 g :: Give -> ip -> e :: ICMPError(19.19.19.19, timeexceeded) -> r :: ICMPRewriter(ip icmp, REPLY_ANNO PAINT);
                 p :: Give -> icmp -> e; x :: Give -> r; r -> take :: Take; r[1] -> other :: Take",
            );
            let mut sent = packet(kind, b"abcdef");
            sent.set_anno_u8(16, 5);
            harness.give(if kind.starts_with("ping") { "p" } else { "g" }, [sent.clone()]);
            let error = harness.take("take").remove(0);
            let outer = Ip::checked(error.bytes()).unwrap();
            assert!(outer.is_checksum_valid() && checksum::is_valid(outer.payload()));
            assert_eq!((outer.source(), outer.destination()), (address("19.19.19.19"), address("18.26.4.44")));
            assert_eq!((error.dst_ip(), error.anno_u8(16)), (address("18.26.4.44"), 5));
            assert_eq!(outer.payload()[8..], *sent.bytes(), "the packet as it was sent");
            // What belongs to no flow, and what is no error.
            harness.give("x", [packet("pong 1.0.0.1 5 2.0.0.2 5", b""), packet("T 1.0.0.1 5 2.0.0.2 5", b""), error]);
            assert_eq!((harness.take("take").len(), harness.take("other").len()), (0, 2));
        }
    }

    #[test]
    fn errors_leave_by_the_outputs_of_their_rewriters() {
        let mut harness = Harness::new(
            "ip :: IPRewriter(pattern 21.0.0.1 1024-65535# - - 0 1); ip[1] -> Take;
             a :: IPAddrRewriter(pattern 22.0.0.1 - 0 0);
             g :: Give -> ip -> e :: ICMPError(19.19.19.19, unreachable, port) -> r :: ICMPRewriter(a:2 ip:0, DST_ANNO false);
             h :: Give -> a -> e; r[0] -> t0 :: Take; r[1] -> t1 :: Take; r[2] -> t2 :: Take",
        );
        harness.give("g", [packet("U 1.0.0.1 1 2.0.0.2 2", b"")]);
        let error = harness.take("t1").remove(0);
        assert_eq!((error.dst_ip(), error.bytes()[16..20].to_vec()), (address("21.0.0.1"), vec![1, 0, 0, 1]));
        harness.give("h", [packet("89 1.0.0.7 1 2.0.0.2 2", b"abcdefgh")]);
        assert_eq!(harness.take("t2")[0].bytes()[16..20], [1, 0, 0, 7]);
        let errors = |config: &str| {
            Harness::errors(&format!(
                "ip :: IPRewriter(drop); Give -> ip -> Take; Give -> ICMPRewriter({config}) -> c :: Take"
            ))
        };
        assert!(errors("").contains("MAPS: required argument missing"));
        assert!(errors("c").contains("c not an IP rewriter") && errors("ip:x").contains("ip:x not an IP rewriter"));
        assert!(errors("ip:1").contains("ip:1 port offset requires more than 1 output"));
    }
}
