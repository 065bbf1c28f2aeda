//! The latch without a GPU, and the kind of gate that the GPU at hand would not choose, with one.

use super::*;
use crate::conformance::check_gates;
use crate::{BackendKind, Device, DeviceChoice, DeviceId};

#[test]
fn a_latch_holds_the_driver_s_thread_until_it_is_opened_before_or_after() {
    for opens_first in [true, false] {
        let gate = FunctionGate { latch: Arc::default() };
        let data = Arc::into_raw(gate.latch.clone()).expose_provenance();
        let (report, passed) = std::sync::mpsc::channel();
        let call = move || {
            // SAFETY: the reference is passed once.
            unsafe { wait_for_latch(std::ptr::with_exposed_provenance_mut(data)) };
            report.send(()).unwrap();
        };
        if opens_first {
            drop(gate);
            std::thread::spawn(call);
        } else {
            std::thread::spawn(call);
            assert!(passed.recv_timeout(std::time::Duration::from_millis(20)).is_err(), "the latch held nothing");
            drop(gate);
        }
        passed.recv_timeout(std::time::Duration::from_secs(10)).expect("the latch does not open");
    }
}

#[test]
fn gates_that_are_functions_conform() {
    let backend = match super::super::open_without_words(0) {
        Ok(backend) => backend,
        Err(error) => {
            bifolio_testing::skip(&error);
            assert!(crate::open(DeviceChoice::Exactly(DeviceId::new(BackendKind::Cuda, 0))).is_err());
            return;
        }
    };
    check_gates(&Device::from_backend(backend), bifolio_testing::seed());
}
