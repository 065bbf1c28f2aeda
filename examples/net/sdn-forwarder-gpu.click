// The forwarder of sdn-forwarder.click, whose rules are looked up on a GPU: it writes the same captures.
//
//   bifolio net --simtime examples/net/sdn-forwarder-gpu.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// DEVICE is auto, host, cuda:0 or opencl:0; USE is auto, device or cpu.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $DEVICE auto, $USE auto);

batcher :: Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUSDNClassifier(eth_type 0x0806 => 0 PRIORITY 9, proto udp dport 0-1023 => 1 PRIORITY 5,
                      dst 10.0.1.0/24 => 1 PRIORITY 2, src 10.0.1.0/24 => 0 PRIORITY 2, ip => 0, MISS 1)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> rules :: Dispatcher;
FromDump($IN0, TIMING true, STOP true) -> batcher;
FromDump($IN1, TIMING true, STOP true) -> batcher;
rules [0] -> ToDump($OUT0);
rules [1] -> ToDump($OUT1);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
