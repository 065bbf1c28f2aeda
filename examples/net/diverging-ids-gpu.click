// The searches of diverging-ids.click on a GPU: a search leaves out the packets that are the other one's, and no batch is taken apart
// for that. It writes the same captures.
//
//   bifolio net --simtime examples/net/diverging-ids-gpu.click IN0=in0.pcap IN1=in1.pcap OUT0=out0.pcap OUT1=out1.pcap ALERTS=alerts.pcap
//
// DEVICE is auto, host, cuda:0 or opencl:0; USE is auto, device or cpu.

define($IN0 in0.pcap, $OUT0 out0.pcap, $IN1 in1.pcap, $OUT1 out1.pcap, $ALERTS alerts.pcap,
       $WEB examples/net/web.rules, $MAIL examples/net/mail.rules,
       $DEVICE auto, $USE auto);

out0 :: ToDump($OUT0, ENCAP IP);
out1 :: ToDump($OUT1, ENCAP IP);
alerts :: ToDump($ALERTS, ENCAP IP);

batcher :: Batcher
  -> HostToDeviceMemcpy($DEVICE, USE $USE)
  -> GPUCheckIPHeader
  -> GPUSDNClassifier(dport 0-1023 => 1, sport 0-1023 => 1, ip => 0, MISS 1, ANNO 19)
  -> GPUIDSMatcher(RULES $MAIL, ANNO 17, CHK_ANNO 19, CHK_VALUE 0)
  -> GPUIDSMatcher(RULES $WEB, ANNO 17, CHK_ANNO 19, CHK_VALUE 1)
  -> DeviceToHostMemcpy
  -> GPUCompletionQueue
  -> Debatcher
  -> sound :: Dispatcher(18);
FromDump($IN0, TIMING true, STOP true) -> Strip(14) -> batcher;
FromDump($IN1, TIMING true, STOP true) -> Strip(14) -> batcher;

// Those with a bad header have no way on.
sound [0] -> clean :: Dispatcher(17);
clean [0] -> rules :: Dispatcher(19);
clean [1] -> alerts;
rules [0] -> out0;
rules [1] -> out1;

// Ends a second after the end of both captures.
DriverManager(wait_stop, wait_stop, wait 1s);
