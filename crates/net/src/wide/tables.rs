//! Tables in a device's memory, which batches read while others change them.

use bifolio_device::{Allocation, Device, DeviceId, DeviceSlice, Event, Result, Stream};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

/// Batches that may be reading a table.
#[derive(Debug, Default)]
pub struct Readers(Vec<Event>);

impl Readers {
    /// What the stream has been given until now reads the table.
    ///
    /// # Errors
    /// The device's. What was given is over then, as far as the device can tell.
    pub fn enter(&mut self, stream: &Stream) -> Result<()> {
        self.0.retain(|event| !matches!(event.query(), Ok(true)));
        match stream.record() {
            Ok(event) => {
                self.0.push(event);
                Ok(())
            }
            // Nobody could wait for it later.
            Err(error) => stream.synchronize().and(Err(error)),
        }
    }

    /// Waits until nobody reads any more of those who have entered, whatever becomes of one of them.
    ///
    /// # Errors
    /// The device's first one. Nobody is waited for again: the batches that failed are over, or the device is.
    pub fn wait(&mut self) -> Result<()> {
        all(self.0.drain(..).map(|event| event.wait()))
    }
}

/// Has all of these done, whatever becomes of one of them: the first error.
fn all(done: impl Iterator<Item = Result<()>>) -> Result<()> {
    done.fold(Ok(()), Result::and)
}

/// Images of a table in a device's memory, each made as a whole: the one that was asked for last, and the one before it, as
/// batches of both may be under way.
///
/// An image is written when nobody reads it, and counts as there when all of it is. Where something fails, the next
/// launch begins anew.
#[derive(Debug)]
pub struct Images<V> {
    stream: Stream,
    places: Mutex<[Place<V>; 2]>,
}

/// Memory for an image.
#[derive(Debug)]
struct Place<V> {
    /// What the image is of; nothing: nobody knows.
    version: Option<V>,
    memory: Allocation,
    readers: Readers,
}

impl<V> Place<V> {
    fn new(device: &Device) -> Result<Self> {
        Ok(Self { version: None, memory: device.alloc(16)?, readers: Readers::default() })
    }

    /// The image becomes that of another version.
    fn fill(&mut self, stream: &Stream, version: V, words: &[u32]) -> Result<()> {
        self.version = None;
        self.readers.wait()?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let len = bytes.len() as u64;
        if self.memory.len() < len {
            // Tables that grow do so by a little.
            self.memory = stream.device().alloc(len + len / 4)?;
        }
        stream.upload(self.memory.slice().part(0, len)?, &bytes)?;
        self.version = Some(version);
        Ok(())
    }
}

impl<V> Images<V> {
    /// None yet.
    ///
    /// # Errors
    /// The device's.
    pub fn new(device: &Device) -> Result<Self> {
        let places = Mutex::new([Place::new(device)?, Place::new(device)?]);
        Ok(Self { stream: device.create_stream()?, places })
    }

    /// Launches by `launch`, on `stream`, what reads the image that `is_it` tells. Where the device has none of that version,
    /// it gets what `make` says.
    ///
    /// # Errors
    /// The device's, and those of `make` and `launch`.
    pub fn launch<W: AsRef<[u32]>>(
        &self,
        stream: &Stream,
        is_it: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<(V, W)>,
        launch: impl FnOnce(&V, DeviceSlice<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let has_it = |place: &Place<V>| place.version.as_ref().is_some_and(&is_it);
        if !has_it(&places[0]) {
            if !has_it(&places[1]) {
                let (version, words) = make()?;
                places[1].fill(&self.stream, version, words.as_ref())?;
            }
            places.swap(0, 1);
        }
        let Place { version: Some(version), memory, readers } = &mut places[0] else { return Ok(()) };
        let launched = launch(version, memory.slice());
        // A launch that fails may have enqueued something.
        let entered = readers.enter(stream);
        launched.and(entered)
    }
}

impl<V> Drop for Images<V> {
    fn drop(&mut self) {
        for place in self.places.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = place.readers.wait();
        }
    }
}

/// Something for each device, made when it is first needed there.
#[derive(Debug)]
pub struct PerDevice<T>(Mutex<Vec<(DeviceId, Arc<T>)>>);

impl<T> Default for PerDevice<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> PerDevice<T> {
    /// That of a device.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get<E>(
        &self,
        device: &Device,
        make: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<Arc<T>, E> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.iter().find(|(id, _)| *id == device.id()) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(make()?);
        all.push((device.id(), Arc::clone(&made)));
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifolio_device::backend::fault::{FaultBackend, Faults};
    use bifolio_device::{DeviceChoice, Error, ErrorKind, open};
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    /// A device that fails when it is told to.
    fn failing() -> (Device, Arc<Faults>) {
        let inner = open(DeviceChoice::Exactly(DeviceId::HOST)).unwrap();
        let faults = Arc::new(Faults::default());
        (Device::from_backend(FaultBackend::new(inner.backend(), &faults)), faults)
    }

    /// What a launch finds of a version whose words are all its number; and whether the image was made for it.
    fn read(images: &Images<u32>, stream: &Stream, version: u32) -> Result<(Vec<u8>, bool)> {
        let (is_made, mut found) = (Cell::new(false), vec![0; version as usize * 4]);
        let make = || {
            is_made.set(true);
            Ok((version, vec![version; version as usize]))
        };
        let look =
            |_: &u32, image: DeviceSlice<'_>| stream.download(&mut found, image.part(0, u64::from(version) * 4)?);
        images.launch(stream, |there| *there == version, make, look)?;
        Ok((found, is_made.get()))
    }

    fn words(version: u32) -> Vec<u8> {
        vec![version; version as usize].into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    #[test]
    fn the_newest_two_images_are_there() {
        let (device, _) = failing();
        let (images, stream) = (Images::new(&device).unwrap(), device.create_stream().unwrap());
        let expected =
            [(3, true), (3, false), (40, true), (3, false), (40, false), (5, true), (40, false), (3, true), (5, true)];
        for (at, (version, is_made)) in expected.into_iter().enumerate() {
            assert_eq!(read(&images, &stream, version).unwrap(), (words(version), is_made), "launch {at}");
        }
    }

    /// A device whose upload failed had been said to have what it was to get.
    #[test]
    fn an_image_whose_upload_failed_is_not_there() {
        let (device, faults) = failing();
        let (images, stream) = (Images::new(&device).unwrap(), device.create_stream().unwrap());
        read(&images, &stream, 7).unwrap();
        // What is longer than the memory that there is needs an allocation.
        for (fault, version) in [(&faults.copies, 50), (&faults.allocations, 100), (&faults.copies, 50)] {
            fault.store(0, Ordering::SeqCst);
            assert!(read(&images, &stream, version).is_err());
            fault.store(-1, Ordering::SeqCst);
            assert_eq!(read(&images, &stream, 7).unwrap(), (words(7), false), "the other image is as it was");
        }
        assert_eq!(read(&images, &stream, 50).unwrap(), (words(50), true));
    }

    /// Events behind one that failed were dropped, and what they stood for was written over while it was read.
    #[test]
    fn all_readers_are_waited_for_where_one_fails() {
        let waited = Cell::new(0);
        let waits = [Ok(()), Err("first"), Ok(()), Err("second")].into_iter().map(|result| {
            waited.set(waited.get() + 1);
            result.map_err(|what| Error::new(ErrorKind::Execution, what))
        });
        assert!(all(waits).unwrap_err().to_string().contains("first"));
        assert_eq!(waited.get(), 4);
    }

    #[test]
    fn readers_that_nobody_can_wait_for_later_are_waited_for_at_once() {
        let (device, faults) = failing();
        let (mut readers, stream) = (Readers::default(), device.create_stream().unwrap());
        readers.enter(&stream).unwrap();
        faults.life.store(0, Ordering::SeqCst);
        assert!(readers.enter(&stream).is_err());
        assert!(readers.0.len() <= 1 && readers.wait().is_ok());
    }
}
