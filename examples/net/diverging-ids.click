// Packets of well-known ports are searched for other rules than the rest (Snap's diverging configuration); from two captures to
// two others, and to one of alerts.
//
//   bifolio net --simtime examples/net/diverging-ids.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap ALERTS=alerts.pcap
//
// diverging-ids-gpu.click does the same on a GPU, where packets that part stay one batch. What leaves are IP packets without
// Ethernet headers.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $ALERTS alerts.pcap,
       $WEB examples/net/web.rules, $MAIL examples/net/mail.rules);

out0 :: ToDump($OUT0, ENCAP IP);
out1 :: ToDump($OUT1, ENCAP IP);
alerts :: ToDump($ALERTS, ENCAP IP);

check :: CheckIPHeader;
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> check;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> check;
check -> rules :: SDNClassifier(dport 0-1023 => 1, sport 0-1023 => 1, ip => 0);
rules [0] -> mail :: IDSMatcher(RULES $MAIL);
rules [1] -> web :: IDSMatcher(RULES $WEB);
mail [0] -> out0;
mail [1] -> alerts;
web [0] -> out1;
web [1] -> alerts;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
