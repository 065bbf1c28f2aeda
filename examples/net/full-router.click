// A whole IP router with rules over many fields and intrusion detection (Snap's full router): that of ip-router.click, with ARP,
// ICMP errors, options and fragments, which classifies and searches what it forwards. From two captures to two others, and to
// one of alerts.
//
//   bifolio net --simtime examples/net/full-router.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap ALERTS=alerts.pcap
//
// full-router-gpu.click does the same with a GPU.

require(library router-port.click);

define($IN0 in0.pcap, $OUT0 out0.pcap, $IP0 10.0.0.1, $NET0 10.0.0.0/24, $ETHERNET0 02:00:00:00:00:01, $MTU0 1500,
       $IN1 in1.pcap, $OUT1 out1.pcap, $IP1 10.0.1.1, $NET1 10.0.1.0/24, $ETHERNET1 02:00:00:00:00:02, $MTU1 1500,
       $ALERTS alerts.pcap, $FLOWS examples/net/flows.rules, $WEB examples/net/web.rules);

out0 :: ToDump($OUT0);
out1 :: ToDump($OUT1);
alerts :: ToDump($ALERTS, ENCAP IP);
exit0 :: RouterExit($IP0, $ETHERNET0, 1, $MTU0);
exit1 :: RouterExit($IP1, $ETHERNET1, 2, $MTU1);
own :: StaticIPLookup($NET0 0, $NET1 1);

// What came: ARP questions, ARP answers, IP packets.
frames :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
FromDump($IN0, TIMING true, STOP true) -> Paint(1) -> frames;
FromDump($IN1, TIMING true, STOP true) -> Paint(2) -> frames;
frames [2] -> Strip(14) -> CheckIPHeader -> rules :: SDNClassifier(RULES $FLOWS);
rules [0] -> Discard;
rules [1] -> search :: IDSMatcher(RULES $WEB);
search [0] -> routes :: RadixIPLookup($IP0/32 0, $IP1/32 0, $NET0 1, $NET1 2);
search [1] -> alerts;
routes [0] -> local :: IPClassifier(icmp type echo, udp, -);
routes [1] -> [1] exit0;
routes [2] -> [1] exit1;

// The router answers pings, and has no port open.
local [0] -> ICMPPingResponder -> own;
local [1] -> ICMPError($IP0, unreachable, port) -> own;
local [2] -> Discard;

// ARP is answered by the link that it came from.
frames [0] -> asked :: CheckPaint(1);
asked [0] -> ARPResponder($IP0 $ETHERNET0) -> out0;
asked [1] -> ARPResponder($IP1 $ETHERNET1) -> out1;
frames [1] -> answered :: CheckPaint(1);
answered [0] -> [0] exit0;
answered [1] -> [0] exit1;
frames [3] -> Discard;

// What leaves. Answers and errors of the router itself are neither classified nor searched.
exit0 [0] -> out0;
exit1 [0] -> out1;
exit0 [1] -> own;
exit1 [1] -> own;
own [0] -> [1] exit0;
own [1] -> [1] exit1;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
