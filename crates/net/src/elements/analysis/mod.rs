//! Times and aggregates of packets.

use crate::element::Class;

mod aggregate_counter;
mod aggregate_ip_flows;
mod flows;
mod time_filter;
mod time_sorted_sched;
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
];
