// A port of the IP router in figure 8 of the Click paper (Kohler et al., 2000). For `require(library router-port.click)`.
//
// RouterPort(IP, ETHERNET, COLOR, MTU)
//   input 0: frames that came by its link       output 0: frames for its link
//   input 1: IP packets that leave by it        output 1: IP packets for the routing table, errors among them
//
// RouterExit(IP, ETHERNET, COLOR, MTU), that part of it that is behind the routing table
//   input 0: ARP answers from its link          output 0: frames for its link
//   input 1: IP packets that leave by it        output 1: errors about them, and redirects
//
// IP and ETHERNET are the router's addresses at the link; COLOR is a number of its own, so that a packet that leaves by
// the port that it came by is noticed; MTU is the longest IP packet of the link, in bytes.

elementclass RouterExit { $ip, $ethernet, $color, $mtu |
  arp :: ARPQuerier($ip, $ethernet) -> [0] output;
  input [0] -> [1] arp;
  input [1]
    -> DropBroadcasts
    -> back :: PaintTee($color)
    -> options :: IPGWOptions($ip)
    -> FixIPSrc($ip)
    -> ttl :: DecIPTTL
    -> fragments :: IPFragmenter($mtu)
    -> [0] arp;

  // What is wrong with it.
  back [1] -> ICMPError($ip, redirect, host) -> [1] output;
  options [1] -> ICMPError($ip, parameterproblem) -> [1] output;
  ttl [1] -> ICMPError($ip, timeexceeded) -> [1] output;
  fragments [1] -> ICMPError($ip, unreachable, needfrag, PMTU $mtu) -> [1] output;
}

elementclass RouterPort { $ip, $ethernet, $color, $mtu |
  frames :: Classifier(12/0806 20/0001, 12/0806 20/0002, 12/0800, -);
  exit :: RouterExit($ip, $ethernet, $color, $mtu);

  // What came: ARP questions, ARP answers, IP packets.
  input [0] -> frames;
  frames [0] -> ARPResponder($ip $ethernet) -> [0] output;
  frames [1] -> [0] exit;
  frames [2] -> Paint($color) -> Strip(14) -> CheckIPHeader -> [1] output;
  frames [3] -> Discard;

  // What leaves.
  input [1] -> [1] exit;
  exit [0] -> [0] output;
  exit [1] -> [1] output;
}
