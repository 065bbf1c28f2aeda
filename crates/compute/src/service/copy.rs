//! The service that computes nothing: what it takes is what moving data takes.

use super::{Batch, Data, Entry, Launch, Output, Prepared, Service, Shape};
use crate::Result;
use bifolio_device::Device;

/// Copies bytes, to the device and back where it is asked to.
#[derive(Debug, Default)]
pub struct Copy;

impl Service for Copy {
    type Params = ();

    fn name(&self) -> &'static str {
        "copy"
    }

    fn shape(&self, (): &(), _input: u64) -> Result<Shape> {
        Ok(Shape { output: Output::Same, results: 0 })
    }

    fn cut(&self, (): &(), at_most: u64) -> u64 {
        at_most / 16 * 16
    }

    fn split(&self, (): &(), _at: u64) -> ((), ()) {
        ((), ())
    }

    fn refusal(&self) -> Option<String> {
        None
    }

    fn sample(&self, about_bytes: u64) -> ((), Vec<u8>) {
        ((), vec![0x5a; about_bytes as usize])
    }

    fn on_cpu(&self, (): &(), data: Data<'_>, _results: &mut [u8]) -> Result<()> {
        if let Data::Apart(input, output) = data {
            output.copy_from_slice(input);
        }
        Ok(())
    }

    fn prepare(&self, _device: &Device, _entries: &[Entry<'_, ()>], _batch: Batch<'_>) -> Result<Prepared> {
        Ok(Prepared::default())
    }

    unsafe fn launch(&self, entries: &[Entry<'_, ()>], launch: &Launch<'_>) -> Result<()> {
        for entry in entries.iter().filter(|entry| entry.input.ptr() != entry.output.ptr()) {
            // SAFETY: the caller's promise.
            unsafe { launch.stream.copy_on_device(entry.output, entry.input) }?;
        }
        Ok(())
    }
}
