// An IP router between two Ethernet devices: figure 8 of the Click paper.
//
//   bifolio net examples/net/ip-router.click DEV0=eth0 IP0=10.0.0.1 NET0=10.0.0.0/24 ETHERNET0=02:00:00:00:00:01 ...
//
// The kernel shall have no IP address at the devices, or it answers, too. METHOD is LINUX or AF_XDP. ROUTE is one more
// route, such as `10.9.0.0/16 10.0.0.3 1` (network, next hop, 1 + number of the device).

require(library router-port.click);

define($DEV0 eth0, $IP0 10.0.0.1, $NET0 10.0.0.0/24, $ETHERNET0 02:00:00:00:00:01, $MTU0 1500,
       $DEV1 eth1, $IP1 10.0.1.1, $NET1 10.0.1.0/24, $ETHERNET1 02:00:00:00:00:02, $MTU1 1500,
       $ROUTE 127.0.0.0/8 3, $METHOD LINUX);

port0 :: RouterPort($IP0, $ETHERNET0, 1, $MTU0);
port1 :: RouterPort($IP1, $ETHERNET1, 2, $MTU1);

FromDevice($DEV0, METHOD $METHOD) -> [0] port0;
FromDevice($DEV1, METHOD $METHOD) -> [0] port1;
port0 [0] -> Queue(1000) -> ToDevice($DEV0, METHOD $METHOD);
port1 [0] -> Queue(1000) -> ToDevice($DEV1, METHOD $METHOD);

// 0: the router itself; 1 and 2: the ports; 3: nowhere.
routes :: RadixIPLookup($IP0/32 0, $IP1/32 0, $NET0 1, $NET1 2, $ROUTE);
port0 [1] -> routes;
port1 [1] -> routes;
routes [0] -> local :: IPClassifier(icmp type echo, udp, -);
routes [1] -> [1] port0;
routes [2] -> [1] port1;
routes [3] -> Discard;

// The router answers pings, and has no port open.
local [0] -> ICMPPingResponder -> routes;
local [1] -> ICMPError($IP0, unreachable, port) -> routes;
local [2] -> Discard;
