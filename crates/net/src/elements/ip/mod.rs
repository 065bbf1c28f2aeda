//! IP: headers checked, changed and made, and tables of routes.

use crate::element::Class;

pub(super) mod addresses;
mod checkipheader;
mod checksums;
mod checktransport;
mod decipttl;
mod ipaddress;
mod ipcombo;
mod ipencap;
mod ipgwoptions;
mod markipheader;
mod reasons;
pub(super) mod routes;
mod tos;
mod udpipencap;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<checkipheader::CheckIpHeader>("CheckIPHeader", "1/1-2", "a/ah", "checks IP headers"),
    Class::new::<checkipheader::CheckIpHeader2>(
        "CheckIPHeader2",
        "1/1-2",
        "a/ah",
        "checks IP headers, but for checksums",
    ),
    Class::new::<checktransport::CheckTcpHeader>("CheckTCPHeader", "1/1-2", "a/ah", "checks TCP headers"),
    Class::new::<checktransport::CheckUdpHeader>("CheckUDPHeader", "1/1-2", "a/ah", "checks UDP headers"),
    Class::new::<checktransport::CheckIcmpHeader>("CheckICMPHeader", "1/1-2", "a/ah", "checks ICMP headers"),
    Class::new::<markipheader::MarkIpHeader>("MarkIPHeader", "1/1", "a", "says where the IP header is"),
    Class::new::<markipheader::StripIpHeader>("StripIPHeader", "1/1", "a", "takes the IP header off"),
    Class::new::<markipheader::UnstripIpHeader>("UnstripIPHeader", "1/1", "a", "puts the IP header back"),
    Class::new::<ipaddress::GetIpAddress>(
        "GetIPAddress",
        "1/1",
        "a",
        "sets the destination address annotation from a packet",
    ),
    Class::new::<ipaddress::SetIpAddress>("SetIPAddress", "1/1", "a", "sets the destination address annotation"),
    Class::new::<ipaddress::StoreIpAddress>("StoreIPAddress", "1/1", "a", "writes an IP address into packets"),
    Class::new::<tos::SetIpDscp>("SetIPDSCP", "1/1", "a", "sets the IP header's differentiated services code point"),
    Class::new::<tos::MarkIpCe>("MarkIPCE", "1/1", "a", "sets the IP header's ECN bits to congestion experienced"),
    Class::new::<decipttl::DecIpTtl>("DecIPTTL", "1/1-2", "a/ah", "takes one off the IP header's time to live"),
    Class::new::<ipgwoptions::IpGwOptions>("IPGWOptions", "1/1-2", "a/ah", "does what IP options ask of every router"),
    Class::new::<ipgwoptions::FixIpSrc>("FixIPSrc", "1/1", "a", "sets the IP source where a packet asks for it"),
    Class::new::<ipencap::IpEncap>("IPEncap", "1/1", "a", "puts an IP header before packets"),
    Class::new::<udpipencap::UdpIpEncap>("UDPIPEncap", "1/1", "a", "puts UDP and IP headers before packets"),
    Class::new::<ipcombo::IpInputCombo>("IPInputCombo", "1/1", "a", "does what an IP router does with its input"),
    Class::new::<ipcombo::IpOutputCombo>("IPOutputCombo", "1/5", "h", "does what an IP router does with its output"),
    Class::new::<checksums::SetIpChecksum>("SetIPChecksum", "1/1", "a", "sets the IP header's checksum"),
    Class::new::<checksums::SetTcpChecksum>("SetTCPChecksum", "1/1", "a", "sets the TCP header's checksum"),
    Class::new::<checksums::SetUdpChecksum>("SetUDPChecksum", "1/1-2", "a/ah", "sets the UDP header's checksum"),
    Class::new::<routes::StaticIpLookup>(
        "StaticIPLookup",
        "1/-",
        "h",
        "looks up routes in a list that does not change",
    ),
    Class::new::<routes::LinearIpLookup>("LinearIPLookup", "1/-", "h", "looks up routes in a list"),
    Class::new::<routes::RadixIpLookup>("RadixIPLookup", "1/-", "h", "looks up routes in a trie"),
    Class::new::<routes::DirectIpLookup>("DirectIPLookup", "1/-", "h", "looks up routes by one or two loads"),
    Class::new::<routes::RangeIpLookup>("RangeIPLookup", "1/-", "h", "looks up routes in sorted ranges of addresses"),
];
