// The IP router of ip-router.click on captures: what came by its two links, with the times at which it came, becomes what
// left by them. Time is simulated: it takes as long as computing takes.
//
//   bifolio net --simtime examples/net/ip-router-pcap.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap

require(library router-port.click);

define($IN0 in0.pcap, $OUT0 out0.pcap, $IP0 10.0.0.1, $NET0 10.0.0.0/24, $ETHERNET0 02:00:00:00:00:01, $MTU0 1500,
       $IN1 in1.pcap, $OUT1 out1.pcap, $IP1 10.0.1.1, $NET1 10.0.1.0/24, $ETHERNET1 02:00:00:00:00:02, $MTU1 1500);

port0 :: RouterPort($IP0, $ETHERNET0, 1, $MTU0);
port1 :: RouterPort($IP1, $ETHERNET1, 2, $MTU1);

from0 :: FromDump($IN0, TIMING true, STOP true) -> [0] port0;
from1 :: FromDump($IN1, TIMING true, STOP true) -> [0] port1;
port0 [0] -> ToDump($OUT0);
port1 [0] -> ToDump($OUT1);

routes :: RadixIPLookup($IP0/32 0, $IP1/32 0, $NET0 1, $NET1 2);
port0 [1] -> routes;
port1 [1] -> routes;
routes [0] -> local :: IPClassifier(icmp type echo, udp, -);
routes [1] -> [1] port0;
routes [2] -> [1] port1;

local [0] -> ICMPPingResponder -> routes;
local [1] -> ICMPError($IP0, unreachable, port) -> routes;
local [2] -> Discard;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
