//! Stacks of real volumes into the memory of every device of this machine.

use crate::support::{Draw, SECRET, loaders};
use bifolio_block::faults::{Faults, FaultyDevice};
use bifolio_io::{Cancel, ReadOptions};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, ErrorKind, FormatOptions, Load, Loader, Luks, Overwrite, Pbkdf, RoutedFile};
use std::sync::Arc;

const CHEAP: Pbkdf = Pbkdf { time_ms: 1, iterations: Some(4), memory_kib: 32, threads: 1 };

/// What `device` gives for a range, by a loader, in memory that held something else.
fn loaded(device: &dyn Load, loader: &Loader, offset: u64, len: u64) -> bifolio_volume::Result<Vec<u8>> {
    let memory = loader.device().alloc(len).unwrap();
    let stream = loader.device().create_stream().unwrap();
    let mut bytes = vec![0xa5; len as usize];
    stream.upload(memory.slice(), &bytes).unwrap();
    device.load(loader, offset, memory.slice())?;
    stream.download(&mut bytes, memory.slice()).unwrap();
    Ok(bytes)
}

fn zeroes() -> CreateOptions {
    CreateOptions { name: String::new(), content: Content::Zeroes, overwrite: Overwrite::Nothing }
}

#[test]
fn every_layout_loads_with_any_two_members_gone() {
    let mut draw = Draw::afresh();
    let loaders = loaders(&ReadOptions::default());
    for rotation in Rotation::ALL {
        let members: Vec<Arc<FaultyDevice>> = (0..5)
            .map(|number| Arc::new(FaultyDevice::new(format!("m{number}"), vec![0; (1 << 20) + (64 << 10)])))
            .collect();
        let devices = |of: &[Arc<FaultyDevice>]| of.iter().map(|one| Arc::clone(one) as Arc<dyn Load>).collect();
        let array = Raid6::create(devices(&members), 4096, rotation, &zeroes()).unwrap();
        let content = draw.bytes(array.geometry().size as usize);
        array.write(0, &content).unwrap();
        array.close().unwrap();
        let gone = [draw.below(5) as usize, draw.below(5) as usize];
        let left: Vec<_> = members
            .iter()
            .enumerate()
            .filter(|(number, _)| !gone.contains(number))
            .map(|(_, one)| Arc::clone(one))
            .collect();
        let array = Raid6::assemble(devices(&left), false).unwrap();
        for loader in &loaders {
            let start = draw.below(content.len() as u64 - 1);
            let len = 1 + draw.below(content.len() as u64 - start);
            for (offset, len) in [(0, content.len() as u64), (start, len)] {
                let seen = loaded(&array, loader, offset, len).unwrap();
                let id = loader.device().id();
                assert!(
                    seen == content[offset as usize..(offset + len) as usize],
                    "{rotation} on {id}, {offset}+{len}, without {gone:?}"
                );
            }
        }
    }
}

#[test]
fn an_encrypted_volume_on_an_array_of_files_loads_while_members_fail() {
    let mut draw = Draw::afresh();
    let folder = tempfile::tempdir().unwrap();
    for loader in loaders(&ReadOptions::default()) {
        let paths: Vec<_> = (0..4).map(|number| folder.path().join(format!("m{number}"))).collect();
        for path in &paths {
            std::fs::File::create(path).unwrap().set_len(24 << 20).unwrap();
        }
        let file = |path: &std::path::PathBuf| Arc::new(RoutedFile::open(path, true).unwrap()) as Arc<dyn Load>;
        let array =
            Raid6::create(paths.iter().map(file).collect(), 64 << 10, Rotation::LeftSymmetric, &zeroes()).unwrap();
        let options = FormatOptions { pbkdf: CHEAP, ..FormatOptions::default() };
        let luks = Luks::format(Arc::new(array), SECRET, &options).unwrap();
        let content = draw.bytes(3_000_000);
        luks.write(12_345, &content).unwrap();
        assert_eq!(loaded(&luks, &loader, 12_345, content.len() as u64).unwrap(), content);
        // Its own members are cut under it: what they held comes from the others.
        for path in &paths[..2] {
            std::fs::File::options().write(true).open(path).unwrap().set_len(2 << 20).unwrap();
            assert_eq!(loaded(&luks, &loader, 12_345, content.len() as u64).unwrap(), content);
        }
        drop(luks);
        let opened =
            Luks::open(Arc::new(Raid6::assemble(paths[2..].iter().map(file).collect(), false).unwrap()), SECRET);
        assert_eq!(loaded(&opened.unwrap(), &loader, 12_345, content.len() as u64).unwrap(), content);
        for path in &paths {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn ranges_beyond_the_end_failures_below_and_cancelled_requests_are_errors() {
    let cancel = Cancel::default();
    for loader in loaders(&ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() }) {
        let below = Arc::new(FaultyDevice::new("image", vec![0; 20 << 20]));
        let options = FormatOptions { pbkdf: CHEAP, ..FormatOptions::default() };
        let luks = Luks::format(Arc::clone(&below) as _, SECRET, &options).unwrap();
        let size = luks.geometry().size;
        assert_eq!(loaded(&luks, &loader, size - 1, 2).unwrap_err().kind(), ErrorKind::BadRange);
        assert_eq!(loaded(&luks, &loader, u64::MAX, 2).unwrap_err().kind(), ErrorKind::BadRange);
        assert!(loaded(&luks, &loader, size, 0).unwrap().is_empty());
        below.set_faults(Faults { reads_fail: true, ..Faults::default() });
        assert_eq!(loaded(&luks, &loader, 0, 100).unwrap_err().kind(), ErrorKind::Read);
    }
    let loaders = loaders(&ReadOptions { cancel: cancel.clone(), ..ReadOptions::default() });
    cancel.cancel();
    for loader in loaders {
        let device = FaultyDevice::new("image", vec![0; 4096]);
        assert_eq!(loaded(&device, &loader, 0, 100).unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
