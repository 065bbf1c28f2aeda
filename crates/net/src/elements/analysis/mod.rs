//! Times and aggregates of packets, and sources that go by time or chance.

use crate::element::{Class, Notes};

mod aggregate_counter;
mod aggregate_ip_flows;
mod flows;
mod random_source;
mod time_filter;
mod time_sorted_sched;
mod timed;
mod timestamps;

/// All of this group.
pub(super) static CLASSES: &[Class] = &[
    Class::new::<timestamps::AdjustTimestamp>("AdjustTimestamp", "1/1", "a", "adds to packets' timestamps"),
    Class::new::<aggregate_counter::AggregateCounter>(
        "AggregateCounter",
        "1-2/1-2",
        "a",
        "counts packets or bytes for each aggregate annotation",
    ),
    Class::new::<aggregate_ip_flows::AggregateIpFlows>(
        "AggregateIPFlows",
        "1/1-2",
        "a/ah",
        "numbers packets by their TCP or UDP flow",
    ),
    Class::new::<random_source::RandomSource>("RandomSource", "0/1", "a", "sends packets of random bytes")
        .notes_empty(Notes::Own),
    Class::new::<timestamps::SetTimestamp>("SetTimestamp", "1/1", "a", "sets packets' timestamps"),
    Class::new::<timestamps::SetTimestampDelta>(
        "SetTimestampDelta",
        "1/1",
        "a",
        "makes packets' timestamps differences",
    ),
    Class::new::<time_filter::TimeFilter>("TimeFilter", "1/1-2", "a/ah", "lets packets of a time pass"),
    Class::new::<time_sorted_sched::TimeSortedSched>(
        "TimeSortedSched",
        "-/1",
        "l",
        "merges streams of packets by their timestamps",
    ),
    Class::new::<timed::TimedSink>("TimedSink", "1/0", "l", "drops a packet now and then"),
    Class::new::<timed::TimedSource>("TimedSource", "0/1", "h", "sends a packet now and then"),
];
