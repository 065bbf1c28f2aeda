//! The behaviour that every backend must show, as checks over the public [`Device`] interface.
//!
//! A backend's test calls [`check_all`]; a capability that the device lacks must come with a
//! reason, and is then checked to be refused as `Unsupported`. Inputs are drawn from a seed, which
//! a failure names. Outputs are poisoned before every check, so an unwritten byte is seen.

mod capabilities;
mod content;
mod copies;
mod frames;
mod gates;
mod memory;
mod order;
mod peers;

use crate::Device;
use fastrand::Rng;

/// One check: a sentence that says what holds, and the code that shows it.
type Check = (&'static str, fn(&Device, &mut Rng));

const CHECKS: &[Check] = &[
    ("copies round-trip at every size and touch nothing else", copies::copies_round_trip),
    ("rows are spread and packed, and what lies between them stays", copies::rows_round_trip),
    ("copies on the device and fills touch their range only", copies::device_copies_and_fills),
    ("work of one stream runs in order", order::streams_run_in_order),
    ("a wait orders two streams", order::waits_order_streams),
    ("an event is done after the work before it", order::events_complete),
    ("streams of many threads do not disturb each other", order::threads_share_the_device),
    ("pinned memory starts zeroed, and pooled slots carry data", memory::pinned_memory_carries_data),
    ("a request beyond the memory is refused and harms nothing", memory::memory_is_bounded),
    ("a range outside its allocation is refused", memory::ranges_are_checked),
    ("frames keep their content wherever they are mapped", frames::frames_move),
    ("places in a range are checked", frames::places_are_checked),
    ("an exported frame is the same memory", frames::frames_are_shared),
    ("what is imported has the length that it is said to have", frames::imports_are_checked),
    ("new frames are zeroes where that is promised", frames::frames_begin_as_zeroes),
    ("registered file mappings can be copied from", |device, random| {
        memory::registered_mappings_copy(device, device, random);
    }),
    ("a direct path to storage is there, or refused", capabilities::direct_storage_is_honest),
    ("a device copies from itself as from a peer, or refuses", |device, random| {
        peers::copies_arrive(device, device, random);
    }),
    ("memory that is said to be the CPU's as well is", capabilities::addresses_are_the_cpus_too),
    ("streams of a program's are adopted, or refused", capabilities::native_streams_are_adopted),
    ("energy is counted, or refused", capabilities::energy_grows),
    ("absent capabilities have a reason", capabilities::reasons_are_given),
];

const GATE_CHECKS: &[Check] = &[
    ("a gate holds back the work behind it", gates::hold_work_back),
    ("a gate opens from another thread", gates::open_from_another_thread),
    ("a gate that is dropped is open", gates::open_when_dropped),
    ("many gates of one stream open in order", gates::open_in_order),
    ("many gates of one stream open in reverse order", gates::open_in_reverse_order),
    ("gates hold back their own stream whatever order they open in", gates::keep_streams_apart),
    ("a gate leaves other streams alone", gates::leave_other_streams_alone),
    ("a gate may outlive its stream", gates::outlive_their_stream),
];

/// Runs every check on `device`; panics with the check, device and seed where one fails.
pub fn check_all(device: &Device, seed: u64) {
    check(device, CHECKS, seed);
    check_gates(device, seed);
}

/// Runs the checks of gates alone, for a backend that has several kinds of them.
pub(crate) fn check_gates(device: &Device, seed: u64) {
    check(device, GATE_CHECKS, seed);
}

/// Runs the checks of two devices of one backend, each as the other's peer.
pub fn check_peers(one: &Device, other: &Device, seed: u64) {
    for (device, peer) in [(one, other), (other, one)] {
        println!("{}: copies from {} (seed {seed})", device.id(), peer.id());
        peers::copies_arrive(device, peer, &mut Rng::with_seed(seed));
        memory::registered_mappings_copy(device, peer, &mut Rng::with_seed(seed));
    }
}

fn check(device: &Device, checks: &[Check], seed: u64) {
    for (name, check) in checks {
        println!("{}: {name} (seed {seed})", device.id());
        check(device, &mut Rng::with_seed(seed));
    }
}
