// A forwarding path: headers checked, times to live taken off, rules, routes; from two captures to two others.
//
//   bifolio net --simtime examples/net/forwarding-path.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// forwarding-path-gpu.click does the same on a GPU. What leaves are IP packets without Ethernet headers.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap);

check :: CheckIPHeader;
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> check;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> check;
check -> ttl :: DecIPTTL
  -> rules :: SDNClassifier(proto icmp => 1 PRIORITY 1, proto udp dport 0-20 => 1 PRIORITY 2, ip => 0);
rules [0] -> routes :: DirectIPLookup(10.0.0.0/24 0, 10.0.1.0/24 1, 0/0 10.0.0.254 0);
rules [1] -> Discard;
routes [0] -> ToDump($OUT0, ENCAP IP);
routes [1] -> ToDump($OUT1, ENCAP IP);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
