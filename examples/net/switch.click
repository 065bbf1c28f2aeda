// An Ethernet switch with three ports.
//
//   bifolio net examples/net/switch.click DEV0=eth0 DEV1=eth1 DEV2=eth2
//
// The kernel shall have no IP address at the devices.

define($DEV0 eth0, $DEV1 eth1, $DEV2 eth2, $TIMEOUT 300, $METHOD LINUX);

switch :: EtherSwitch(TIMEOUT $TIMEOUT);
FromDevice($DEV0, PROMISC true, METHOD $METHOD) -> [0] switch [0] -> Queue(1000) -> ToDevice($DEV0, METHOD $METHOD);
FromDevice($DEV1, PROMISC true, METHOD $METHOD) -> [1] switch [1] -> Queue(1000) -> ToDevice($DEV1, METHOD $METHOD);
FromDevice($DEV2, PROMISC true, METHOD $METHOD) -> [2] switch [2] -> Queue(1000) -> ToDevice($DEV2, METHOD $METHOD);
