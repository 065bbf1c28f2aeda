// A NAT gateway: hosts of an inner network share one outer address. TCP, UDP, pings, and errors about them.
//
//   bifolio net examples/net/nat-gateway.click INNER=eth0 OUTER=eth1 ...
//
// The kernel shall have no IP address at the devices. NEXT is the next router outside.

define($INNER eth0, $INNER_IP 192.168.0.1, $INNER_NET 192.168.0.0/24, $INNER_ETHERNET 02:00:00:00:00:01,
       $OUTER eth1, $OUTER_IP 203.0.113.1, $OUTER_ETHERNET 02:00:00:00:00:02, $NEXT 203.0.113.254, $METHOD LINUX);

// A port: input 0 and output 0 are frames, input 1 and output 1 IP packets, whose destination annotation is the next hop.
elementclass Port { $ip, $ethernet |
  frames :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
  arp :: ARPQuerier($ip, $ethernet);
  input [0] -> HostEtherFilter($ethernet) -> frames;
  frames [0] -> ARPResponder($ip $ethernet) -> [0] output;
  frames [1] -> [1] arp;
  frames [2] -> Strip(14) -> CheckIPHeader -> [1] output;
  frames [3] -> Discard;
  input [1] -> [0] arp -> [0] output;
}

inner :: Port($INNER_IP, $INNER_ETHERNET);
outer :: Port($OUTER_IP, $OUTER_ETHERNET);
FromDevice($INNER, METHOD $METHOD) -> [0] inner;
FromDevice($OUTER, METHOD $METHOD) -> [0] outer;
inner [0] -> Queue(1000) -> ToDevice($INNER, METHOD $METHOD);
outer [0] -> Queue(1000) -> ToDevice($OUTER, METHOD $METHOD);

// Input 0: from inside, which makes flows. Input 1: from outside, which only has those. Output 0 leads out, output 1 in.
flows :: IPRewriter(pattern $OUTER_IP 1024-65535# - - 0 1, drop);
pings :: ICMPPingRewriter(pattern $OUTER_IP 0-65535# - - 0 1, drop);
errors :: ICMPRewriter(flows pings);
flows [0] -> SetIPAddress($NEXT) -> [1] outer;
pings [0] -> SetIPAddress($NEXT) -> [1] outer;
flows [1] -> [1] inner;
pings [1] -> [1] inner;
errors -> [1] inner;

// From inside. A packet whose time is up is told about before it is rewritten.
inner [1] -> from_inside :: IPClassifier(dst host $INNER_IP and icmp type echo, dst net $INNER_NET,
                                         tcp or udp or icmp type echo, -);
from_inside [0] -> ICMPPingResponder -> [1] inner;
from_inside [1] -> Discard;
from_inside [2] -> out_ttl :: DecIPTTL -> out :: IPClassifier(icmp, -);
from_inside [3] -> Discard;
out_ttl [1] -> ICMPError($INNER_IP, timeexceeded) -> [1] inner;
out [0] -> [0] pings;
out [1] -> [0] flows;

// From outside.
outer [1] -> from_outside :: IPClassifier(dst host $OUTER_IP, -);
from_outside [0] -> in_ttl :: DecIPTTL -> in :: IPClassifier(tcp or udp, icmp type echo-reply, icmp, -);
from_outside [1] -> Discard;
in_ttl [1] -> ICMPError($OUTER_IP, timeexceeded) -> SetIPAddress($NEXT) -> [1] outer;
in [0] -> [1] flows;
in [1] -> [1] pings;
in [2] -> errors;
in [3] -> Discard;
