// The path of forwarding-path.click, all of it on a GPU in one trip: it writes the same captures.
//
//   bifolio net --simtime examples/net/forwarding-path-gpu.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// DEVICE is auto, host, cuda:0 or opencl:0; USE is auto, device or cpu.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $DEVICE auto, $USE auto);

batcher :: Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUCheckIPHeader
  -> GPUDecIPTTL
  -> GPUSDNClassifier(proto icmp => 1 PRIORITY 1, proto udp dport 0-20 => 1 PRIORITY 2, ip => 0, ANNO 19)
  -> GPUIPLookup(10.0.0.0/24 0, 10.0.1.0/24 1, 0/0 10.0.0.254 0)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> sound :: Dispatcher(18);
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> batcher;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> batcher;

// Those with a bad header, or whose time is over, have no way on.
sound [0] -> rules :: Dispatcher(19);
rules [0] -> routes :: Dispatcher;
rules [1] -> Discard;
routes [0] -> ToDump($OUT0, ENCAP IP);
routes [1] -> ToDump($OUT1, ENCAP IP);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
