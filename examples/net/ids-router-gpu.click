// The router of ids-router.click with all that it computes on a GPU, in one trip: it writes the same captures.
//
//   bifolio net --simtime examples/net/ids-router-gpu.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap ALERTS=alerts.pcap
//
// DEVICE is auto, host, cuda:0 or opencl:0; USE is auto, device or cpu.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $ALERTS alerts.pcap,
       $FLOWS examples/net/flows.rules, $WEB examples/net/web.rules,
       $DEVICE auto, $USE auto);

out0 :: ToDump($OUT0, ENCAP IP);
out1 :: ToDump($OUT1, ENCAP IP);
alerts :: ToDump($ALERTS, ENCAP IP);

batcher :: Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUCheckIPHeader
  -> GPUDecIPTTL
  -> GPUSDNClassifier(RULES $FLOWS, MISS 1, ANNO 19)
  -> GPUIDSMatcher(RULES $WEB, ANNO 17, CHK_ANNO 19, CHK_VALUE 1)
  -> GPUIPLookup(10.0.0.0/24 0, 10.0.1.0/24 1, 0/0 10.0.0.254 0)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> sound :: Dispatcher(18);
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> batcher;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> batcher;

// Those with a bad header, or whose time is over, have no way on.
sound [0] -> rules :: Dispatcher(19);
rules [0] -> Discard;
rules [1] -> clean :: Dispatcher(17);
clean [0] -> routes :: Dispatcher;
clean [1] -> alerts;
routes [0] -> out0;
routes [1] -> out1;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
