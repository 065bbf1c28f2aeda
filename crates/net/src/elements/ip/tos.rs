//! SetIPDSCP: sets the differentiated services code point. MarkIPCE: says that there is congestion.
//!
//! Both are agnostic, with an input and an output, and adjust the IP header's checksum. A packet whose IP header is not known
//! is dropped (Click ends the program).
//!
//! `SetIPDSCP(DSCP)`: DSCP is 0 to 63. Handler: `dscp` (r/w). Takes a new configuration while it runs.
//!
//! `MarkIPCE([FORCE])`: sets the ECN bits to 3, congestion experienced. A packet whose ECN bits are 0, whose sender does not
//! understand ECN, is dropped, unless FORCE is true (false by default). Handler: `drops`, which stays 0 in Click.

use crate::Packet;
use crate::args::{Arg, Args, Failed};
use crate::element::Element;
use crate::handler::Handlers;
use crate::headers::ip::{ECN_CE, ECN_NOT_ECT};
use crate::headers::{Ip, IpMut};
use crate::router::Cx;

/// The type of service of a packet's known IP header.
fn tos(packet: &Packet) -> Option<u8> {
    packet.network_header().and_then(Ip::new).map(Ip::tos)
}

fn change_tos(mut packet: Packet, tos: u8) -> Option<Packet> {
    IpMut::new(packet.network_header_mut()?)?.change_tos(tos);
    Some(packet)
}

/// Sets the code point.
#[derive(Default)]
pub(super) struct SetIpDscp {
    dscp: u8,
}

fn checked(dscp: u32) -> Result<u8, String> {
    if dscp > 63 { Err("diffserv code point out of range".to_owned()) } else { Ok(dscp as u8) }
}

impl Element for SetIpDscp {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let mut dscp = 0;
        args.must("DSCP", &mut dscp).finish()?;
        self.dscp = checked(dscp).map_err(|error| args.error(error))?;
        Ok(())
    }

    fn reconfigures(&self) -> bool {
        true
    }

    fn action(&mut self, _: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        let old = tos(&packet)?;
        change_tos(packet, self.dscp << 2 | old & 3)
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("dscp", |set: &mut Self, _| set.dscp);
        handlers.write("dscp", |set: &mut Self, cx, text| {
            set.dscp = checked(u32::parse(text, &cx.arg_cx())?)?;
            Ok(())
        });
    }
}

/// Says that there is congestion.
#[derive(Default)]
pub(super) struct MarkIpCe {
    is_forced: bool,
    drops: u64,
}

impl Element for MarkIpCe {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        args.may("FORCE", &mut self.is_forced).finish()
    }

    fn action(&mut self, _: &mut Cx<'_>, packet: Packet) -> Option<Packet> {
        match tos(&packet) {
            Some(tos) if tos & 3 == ECN_CE => Some(packet),
            Some(tos) if tos & 3 != ECN_NOT_ECT || self.is_forced => change_tos(packet, tos | ECN_CE),
            _ => {
                self.drops += 1;
                None
            }
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        handlers.read("drops", |mark: &mut Self, _| mark.drops);
    }
}

#[cfg(test)]
mod tests {
    use crate::elements::testing::{Harness, fuzz, ip};
    use crate::headers::Ip;
    use crate::headers::ip::set_checksum;

    fn with_tos(tos: u8) -> Vec<u8> {
        let mut packet = ip(9, [1; 4], [2; 4], &[]);
        packet[1] = tos;
        set_checksum(&mut packet).unwrap();
        packet
    }

    /// The types of service of what comes out, whose checksums are right.
    fn run(harness: &mut Harness, tos: impl IntoIterator<Item = u8>) -> Vec<u8> {
        for tos in tos {
            harness.give_bytes("give", &with_tos(tos));
        }
        let out = harness.take_bytes("take");
        assert!(out.iter().all(|packet| Ip::new(packet).unwrap().is_checksum_valid()));
        out.iter().map(|packet| packet[1]).collect()
    }

    #[test]
    fn the_code_point_is_set_and_ecn_kept() {
        let mut harness = Harness::new("give :: Give -> CheckIPHeader -> s :: SetIPDSCP(DSCP 10) -> take :: Take");
        assert_eq!(run(&mut harness, [0, 0xff, 0x29]), [40, 43, 41]);
        assert_eq!(harness.read("s.dscp"), "10");
        harness.write("s.dscp", "2").unwrap();
        assert_eq!(harness.read("s.dscp"), "2");
        assert_eq!(harness.write("s.dscp", "64").unwrap_err(), "diffserv code point out of range");
        assert_eq!(run(&mut harness, [0xff]), [11]);
    }

    #[test]
    fn congestion_is_marked_where_ecn_is_understood() {
        let mut harness = Harness::new("give :: Give -> CheckIPHeader -> m :: MarkIPCE -> take :: Take");
        assert_eq!(run(&mut harness, [0, 1, 2, 3, 0xfc]), [3, 3, 3]);
        assert_eq!(harness.read("m.drops"), "2");
        let mut harness = Harness::new("give :: Give -> CheckIPHeader -> m :: MarkIPCE(FORCE true) -> take :: Take");
        assert_eq!(run(&mut harness, [0, 1, 2, 3, 0xfc]), [3, 3, 3, 3, 0xff]);
    }

    #[test]
    fn configurations_that_are_wrong() {
        for (config, told) in [
            ("SetIPDSCP", "DSCP: required argument missing"),
            ("SetIPDSCP(64)", "diffserv code point out of range"),
            ("SetIPDSCP(-1)", "DSCP: must be >= 0"),
            ("MarkIPCE(2)", "FORCE: type mismatch"),
            ("MarkIPCE(true, false)", "too many arguments"),
        ] {
            let log = Harness::errors(&format!("Give -> {config} -> Take"));
            assert!(log.contains(told), "{config}: {log}");
        }
    }

    #[test]
    fn any_packet_is_survived() {
        fuzz("give :: Give -> SetIPDSCP(3) -> MarkIPCE(true) -> take :: Take", &["take"]);
    }
}
