// An IPsec gateway: what comes by link 0 leaves by link 1 in a tunnel, and what comes by link 1 in a tunnel leaves by link 0.
//
//   bifolio net --simtime examples/net/ipsec-gateway.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// So that any capture will do, `peer` stands for the gateway at the other end, and puts what IN1 has into its tunnel. Keys
// come from files in earnest (KEYFILE), and IV is left out: it is here so that captures can be compared.
// ipsec-gateway-gpu.click does the same on a GPU. What leaves are IP packets without Ethernet headers.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap,
       $HERE 192.0.2.1, $THERE 192.0.2.2,
       $SENT 0x1000, $SENT_KEY 0x000102030405060708090a0b0c0d0e0f10111213,
       $CAME 0x2000, $CAME_KEY 0x202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40414243);

FromDump($IN0, TIMING true, STOP true) -> Strip(14)
  -> CheckIPHeader
  -> DecIPTTL
  -> IPsecESPEncap($SENT, $SENT_KEY, SRC $HERE, DST $THERE, IV 0)
  -> ToDump($OUT1, ENCAP IP);

FromDump($IN1, TIMING true, STOP true) -> Strip(14)
  -> CheckIPHeader
  -> peer :: IPsecESPEncap($CAME, $CAME_KEY, ESN true, SRC $THERE, DST $HERE, IV 0)
  -> IPsecESPUnencap($CAME, $CAME_KEY, ESN true)
  -> DecIPTTL
  -> ToDump($OUT0, ENCAP IP);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
