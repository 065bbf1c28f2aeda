// A forwarder that rules over many fields steer, from two captures to two others.
//
//   bifolio net --simtime examples/net/sdn-forwarder.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// sdn-forwarder-gpu.click does the same on a GPU.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap);

// What no rule matches leaves by the last output.
rules :: SDNClassifier(eth_type 0x0806 => 0 PRIORITY 9, proto udp dport 0-1023 => 1 PRIORITY 5,
                       dst 10.0.1.0/24 => 1 PRIORITY 2, src 10.0.1.0/24 => 0 PRIORITY 2, ip => 0);
FromDump($IN0, TIMING true, STOP true) -> rules;
FromDump($IN1, TIMING true, STOP true) -> rules;
rules [0] -> ToDump($OUT0);
rules [1] -> ToDump($OUT1);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
