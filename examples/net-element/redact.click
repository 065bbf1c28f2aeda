// Removes a text from a capture.
//
//   cargo run -p net-element -- examples/net-element/redact.click IN=in.pcap OUT=out.pcap TEXT=secret

define($TEXT password);

FromDump($IN, STOP true) -> redact :: Redact($TEXT) -> ToDump($OUT);
DriverManager(wait_stop, print "$(redact.count) texts overwritten");
