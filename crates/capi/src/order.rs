//! Which work of the program's comes before a call: what each thread has chosen.

use crate::status::{Failure, Outcome, bf_status, status};
use bifolio_device::DeviceSlice;
use bifolio_io::{After, Router};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

/// Calls begin after what the default streams hold; how every thread begins.
pub const BF_AFTER_DEFAULT_STREAMS: u32 = 0;
/// Calls begin after what one stream holds.
pub const BF_AFTER_STREAM: u32 = 1;
/// Calls begin at once.
pub const BF_AFTER_NOTHING: u32 = 2;

#[derive(Debug, Clone, Copy)]
enum Order {
    DefaultStreams,
    Stream(u64),
    Nothing,
}

thread_local! {
    static ORDER: Cell<Order> = const { Cell::new(Order::DefaultStreams) };
}

/// Says which work comes before the calling thread's later calls with device memory that name no stream
/// (`bf_read`, `bf_write`, `bf_read_batch`, their `bf_submit_` forms, `bf_copy_to_host`, `bf_copy_from_host`).
///
/// With `BF_AFTER_DEFAULT_STREAMS`, as it is at first, they begin after what the legacy default stream and the default
/// streams of threads hold when they are called, and all streams that were not made non-blocking, as cudaMemcpy does:
/// a fill that was enqueued there before is over, and so is a kernel that makes what is written. With
/// `BF_AFTER_STREAM` they begin after what `stream` (a `CUstream` of the context's device) holds, and with
/// `BF_AFTER_NOTHING` at once, for programs that have waited by themselves. `stream` is ignored but with
/// `BF_AFTER_STREAM`.
///
/// While a stream that was not made non-blocking is captured into a graph, calls that begin after the default streams are
/// refused with `BF_ERROR_DEVICE`: waiting would end the capture.
///
/// # Safety
/// `stream` is live as long as calls of this thread begin after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bf_order_after(what: u32, stream: *mut c_void) -> bf_status {
    status(|| {
        let order = match what {
            BF_AFTER_DEFAULT_STREAMS => Order::DefaultStreams,
            BF_AFTER_STREAM => Order::Stream(stream.expose_provenance() as u64),
            BF_AFTER_NOTHING => Order::Nothing,
            _ => {
                return Err(Failure::argument(format!(
                    "{what} is not an order: use BF_AFTER_DEFAULT_STREAMS, BF_AFTER_STREAM or BF_AFTER_NOTHING"
                )));
            }
        };
        ORDER.set(order);
        Ok(())
    })
}

/// What comes before a request of this thread.
pub(crate) fn after(router: &Router) -> Outcome<After> {
    // A child of the process must not ask the driver; its request is refused.
    if router.was_forked() {
        return Ok(After::Nothing);
    }
    Ok(match ORDER.get() {
        Order::DefaultStreams => After::DefaultStreams,
        Order::Nothing => After::Nothing,
        Order::Stream(raw) => {
            // SAFETY: the caller of `bf_order_after` keeps the stream.
            let stream = unsafe { router.device().adopt_stream(raw) }?;
            if stream.is_capturing()? {
                return Err(Failure::argument(
                    "the stream of bf_order_after is being captured into a graph, which cannot be waited for",
                ));
            }
            After::Event(Arc::new(stream.record()?))
        }
    })
}

/// Waits for it: the memory, which needs no further wait.
pub(crate) fn settled<'a>(router: &Router, memory: DeviceSlice<'a>) -> Outcome<DeviceSlice<'a>> {
    match after(router)? {
        After::DefaultStreams => return Ok(router.device().settle(memory)?),
        After::Event(event) => event.wait()?,
        After::Nothing => {}
    }
    Ok(memory.ordered())
}
