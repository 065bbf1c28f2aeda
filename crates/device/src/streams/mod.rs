//! Work on a device, and its order.
//!
//! ```text
//!   stream   in-order queues: copies, fills, launches   gate      points that the host opens
//!   event    points that the host waits for             default   the streams of programs that name none
//! ```

mod default;
mod event;
mod gate;
mod stream;

pub use event::Event;
pub use gate::Gate;
pub use stream::Stream;
