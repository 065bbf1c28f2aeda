//! A sample as metrics, in Prometheus' text format 0.0.4.

use super::sample::{Reading, Sample};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// What answers have to say of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric that elements have, and its value.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&Reading) -> Option<u64>,
}

const FAMILIES: &[Family] = &[
    Family {
        name: "bifolio_net_drops_total",
        kind: "counter",
        help: "Packets that an element dropped, as its handler drops says.",
        value: |reading| reading.drops,
    },
    Family {
        name: "bifolio_net_bytes_total",
        kind: "counter",
        help: "Bytes that an element counted, as its handler byte_count says.",
        value: |reading| reading.bytes,
    },
    Family {
        name: "bifolio_net_queue_packets",
        kind: "gauge",
        help: "Packets that an element stores.",
        value: |reading| reading.length,
    },
    Family {
        name: "bifolio_net_queue_capacity_packets",
        kind: "gauge",
        help: "Packets that an element can store.",
        value: |reading| reading.capacity,
    },
];

/// All metrics of a sample. `begin` is when the router began to run.
pub fn metrics(sample: &Sample, begin: SystemTime) -> String {
    let mut out = String::new();
    head(&mut out, "bifolio_net_info", "gauge", "The version of the program; always 1.");
    let _ = writeln!(out, "bifolio_net_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    let begin = begin.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    head(&mut out, "bifolio_net_start_time_seconds", "gauge", "When the router began to run, in seconds since 1970.");
    let _ = writeln!(out, "bifolio_net_start_time_seconds {begin:.3}");
    head(&mut out, "bifolio_net_elements", "gauge", "Elements of the router.");
    let _ = writeln!(out, "bifolio_net_elements {}", sample.elements.len());
    packets(&mut out, sample);
    for family in FAMILIES {
        write_family(&mut out, sample, family);
    }
    out
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn packets(out: &mut String, sample: &Sample) {
    let name = "bifolio_net_packets_total";
    head(out, name, "counter", "Packets that came to an input of an element.");
    for (element, reading) in sample.elements.iter().enumerate() {
        for (port, packets) in reading.inputs.iter().enumerate() {
            let _ = writeln!(out, "{name}{{{},port=\"{port}\"}} {packets}", labels(sample, element));
        }
    }
}

fn write_family(out: &mut String, sample: &Sample, family: &Family) {
    let values = sample.elements.iter().enumerate();
    let mut values = values.filter_map(|(element, reading)| Some((element, (family.value)(reading)?))).peekable();
    if values.peek().is_some() {
        head(out, family.name, family.kind, family.help);
    }
    for (element, value) in values {
        let _ = writeln!(out, "{}{{{}}} {value}", family.name, labels(sample, element));
    }
}

fn labels(sample: &Sample, element: usize) -> String {
    let (name, class) = (sample.router.name(element), sample.router.class_of(element).name);
    format!("element=\"{}\",class=\"{}\"", escape(name), escape(class))
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Watch;
    use crate::watch::testing::built;
    use std::time::Duration;

    #[test]
    fn a_router_has_metrics() {
        let mut running = built(
            "i :: InfiniteSource(LIMIT 7, DATA 12345) -> c/x :: Counter -> [1] q :: MixedQueue(5) -> Discard(ACTIVE false);
             Idle -> q",
        );
        running.run_for(2000);
        let mut watch = Watch::new(running.current().clone());
        let sample = watch.sample_of(&mut running);
        let text = metrics(&sample, UNIX_EPOCH + Duration::from_millis(12_345_678));
        let expected = format!(
            "\
# HELP bifolio_net_info The version of the program; always 1.
# TYPE bifolio_net_info gauge
bifolio_net_info{{version=\"{}\"}} 1
# HELP bifolio_net_start_time_seconds When the router began to run, in seconds since 1970.
# TYPE bifolio_net_start_time_seconds gauge
bifolio_net_start_time_seconds 12345.678
# HELP bifolio_net_elements Elements of the router.
# TYPE bifolio_net_elements gauge
bifolio_net_elements 5
# HELP bifolio_net_packets_total Packets that came to an input of an element.
# TYPE bifolio_net_packets_total counter
bifolio_net_packets_total{{element=\"c/x\",class=\"Counter\",port=\"0\"}} 7
bifolio_net_packets_total{{element=\"q\",class=\"MixedQueue\",port=\"0\"}} 0
bifolio_net_packets_total{{element=\"q\",class=\"MixedQueue\",port=\"1\"}} 7
bifolio_net_packets_total{{element=\"Discard@4\",class=\"Discard\",port=\"0\"}} 0
# HELP bifolio_net_drops_total Packets that an element dropped, as its handler drops says.
# TYPE bifolio_net_drops_total counter
bifolio_net_drops_total{{element=\"q\",class=\"MixedQueue\"}} 2
# HELP bifolio_net_bytes_total Bytes that an element counted, as its handler byte_count says.
# TYPE bifolio_net_bytes_total counter
bifolio_net_bytes_total{{element=\"c/x\",class=\"Counter\"}} 35
# HELP bifolio_net_queue_packets Packets that an element stores.
# TYPE bifolio_net_queue_packets gauge
bifolio_net_queue_packets{{element=\"q\",class=\"MixedQueue\"}} 5
# HELP bifolio_net_queue_capacity_packets Packets that an element can store.
# TYPE bifolio_net_queue_capacity_packets gauge
bifolio_net_queue_capacity_packets{{element=\"q\",class=\"MixedQueue\"}} 5
",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
