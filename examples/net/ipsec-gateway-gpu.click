// The gateway of ipsec-gateway.click, with its encryption and decryption on a GPU: it writes the same captures.
//
//   bifolio net --simtime examples/net/ipsec-gateway-gpu.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap
//
// DEVICE is auto, host, cuda:0 or opencl:0; USE is auto, device or cpu.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap,
       $HERE 192.0.2.1, $THERE 192.0.2.2,
       $SENT 0x1000, $SENT_KEY 0x000102030405060708090a0b0c0d0e0f10111213,
       $CAME 0x2000, $CAME_KEY 0x202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40414243,
       $DEVICE auto, $USE auto);

// A batch takes a sequence number for each of its packets: those that do not go on are dropped before they are in one.
FromDump($IN0, TIMING true, STOP true) -> Strip(14)
  -> CheckIPHeader
  -> DecIPTTL
  -> Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUIPsecESP($SENT, $SENT_KEY, DIRECTION encrypt, SRC $HERE, DST $THERE, IV 0)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> ToDump($OUT1, ENCAP IP);

FromDump($IN1, TIMING true, STOP true) -> Strip(14)
  -> CheckIPHeader
  -> peer :: IPsecESPEncap($CAME, $CAME_KEY, ESN true, SRC $THERE, DST $HERE, IV 0)
  -> Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUIPsecESP($CAME, $CAME_KEY, DIRECTION decrypt, ESN true)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> good :: Dispatcher(18);
good [0] -> DecIPTTL -> ToDump($OUT0, ENCAP IP);

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
