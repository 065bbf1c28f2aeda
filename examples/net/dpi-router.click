// A router that looks into packets (Snap's DPI router): headers, payloads, routes; from two captures to two others, and to one of
// alerts.
//
//   bifolio net --simtime examples/net/dpi-router.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap ALERTS=alerts.pcap
//
// dpi-router-gpu.click does the same on a GPU. What leaves are IP packets without Ethernet headers. WEB is a file of rules such as
// Snort's or Suricata's.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $ALERTS alerts.pcap,
       $WEB examples/net/web.rules);

out0 :: ToDump($OUT0, ENCAP IP);
out1 :: ToDump($OUT1, ENCAP IP);
alerts :: ToDump($ALERTS, ENCAP IP);

check :: CheckIPHeader;
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> check;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> check;
check -> ttl :: DecIPTTL
  -> search :: IDSMatcher(RULES $WEB);
search [0] -> routes :: RadixIPLookup(10.0.0.0/24 0, 10.0.1.0/24 1, 0/0 10.0.0.254 0);
search [1] -> alerts;
routes [0] -> out0;
routes [1] -> out1;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
