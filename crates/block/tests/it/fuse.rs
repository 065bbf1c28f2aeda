//! Devices as files of a mounted folder.

use bifolio_block::faults::FaultyDevice;
use bifolio_block::{BlockDevice, ErrorKind, fuse};
use bifolio_testing::{has, noise, seed, skip, until};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether file systems can be mounted here.
fn can_mount() -> bool {
    // A container without the device is no machine on which set-up could do anything.
    if !Path::new("/dev/fuse").exists() {
        skip("there is no /dev/fuse");
        return false;
    }
    has("fusermount3")
}

#[test]
fn a_device_is_a_file_that_is_served_until_its_last_user_has_closed_it() {
    if !can_mount() {
        return;
    }
    let content = noise(3 << 20, seed());
    let device = Arc::new(FaultyDevice::new("disk", content.clone()));
    let folder = tempfile::tempdir().unwrap();
    let mounted = fuse::export(device.clone(), OsStr::new("disk"), folder.path()).unwrap();
    let (stop, ticks, detached) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
    let path = folder.path().join("disk");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            mounted.serve_until(&|| stop.load(Ordering::Relaxed), &mut || ticks.store(true, Ordering::Relaxed), &|_| {
                detached.store(true, Ordering::Relaxed);
            })
        });
        assert!(std::fs::read(&path).unwrap() == content);
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"changed", 4000).unwrap();
        until("somebody looks at it meanwhile", || ticks.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        until("it is out of sight", || detached.load(Ordering::Relaxed));
        assert!(!path.exists() && !server.is_finished());
        let mut seen = [0; 7];
        file.read_exact_at(&mut seen, 4000).unwrap();
        assert_eq!(&seen, b"changed");
        drop(file);
        server.join().unwrap().unwrap();
    });
    assert_eq!(&device.after_power_loss(|_| false).content()[4000..4007], b"changed", "it was flushed in the end");
}

#[test]
fn mount_points_that_cannot_be_are_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new("disk", vec![0; 512]));
    let folder = tempfile::tempdir().unwrap();
    let kind = |at: &Path| fuse::export(device.clone(), OsStr::new("disk"), at).unwrap_err().kind();
    assert_eq!(kind(&folder.path().join("none")), ErrorKind::NotFound);
    std::fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(kind(folder.path()), ErrorKind::Exists);
    assert_eq!(kind(&folder.path().join("file")), ErrorKind::BadUse);
}
