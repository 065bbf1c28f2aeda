//! Who reads and writes, and where.

use crate::support::{FRAME, HostMapping, PAGE, Program, World, options};
use bifolio_cache::{CachedFile, Mode};
use bifolio_device::Device;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    Device(usize),
    /// A CPU through the cache's own interface.
    Cache,
    /// A CPU process that opens the file, reads or writes, and closes it.
    Process,
    /// A CPU process with a mapping that lives on.
    Mapped,
}

impl Agent {
    pub(crate) const ALL: [Self; 5] = [Self::Device(0), Self::Device(1), Self::Cache, Self::Process, Self::Mapped];

    pub(crate) fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) => Some(device),
            _ => None,
        }
    }
}

/// Where the places of a litmus test lie in the file, and in which mode and pages the cache works.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    #[allow(dead_code, reason = "shown where a test fails")]
    pub(crate) name: &'static str,
    pub(crate) mode: Mode,
    pub(crate) page_bytes: u64,
    pub(crate) places: [u64; 3],
    pub(crate) len: u64,
}

impl Layout {
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for mode in [Mode::Lazy, Mode::Eager] {
            for page_bytes in [PAGE, 64 << 10, FRAME] {
                let far = page_bytes.min(FRAME / 2);
                let mut add = |name, places, len| all.push(Self { name, mode, page_bytes, places, len });
                add("bytes of one word", [17, 18, 19], 3 * PAGE);
                add("bytes of one page", [7, 8, 4095], 3 * PAGE);
                add("the end of a page", [page_bytes - 1, page_bytes, page_bytes + 1], page_bytes + PAGE);
                add("pages", [3, far + 3, 2 * far - 1], 2 * far + 100);
                add(
                    "the last bytes of the file",
                    [page_bytes + 98, page_bytes + 99, page_bytes + 100],
                    page_bytes + 101,
                );
                add("the end of a frame", [FRAME - 1, FRAME, FRAME + 1], FRAME + 777);
            }
        }
        all
    }

    /// Whole pages around the places.
    fn part(&self) -> Range<u64> {
        let [first, .., last] = self.places;
        first / PAGE * PAGE..((last + 1).next_multiple_of(PAGE)).min(self.len)
    }
}

/// A file that several agents use. Devices have the part acquired several times over, so that a release leaves
/// it acquired and is not followed by an acquire.
pub(crate) struct Stage {
    pub(crate) layout: Layout,
    world: World,
    file: CachedFile,
    programs: Vec<Program>,
    acquired: Vec<u32>,
    mapped: Option<HostMapping>,
}

const AHEAD: u32 = 8;

impl Stage {
    pub(crate) fn new(devices: &[Device], layout: &Layout) -> Self {
        let world = World::new(devices, options(layout.page_bytes, 16, layout.mode), &vec![0; layout.len as usize]);
        let file = world.open();
        let programs: Vec<_> = (0..devices.len()).map(|number| Program::on(&world, &file, number)).collect();
        let acquired = vec![0; devices.len()];
        Self { layout: layout.clone(), world, file, programs, acquired, mapped: None }
    }

    /// Everything is 0 and everybody knows it. A mapping exists only where an agent uses it: with one the cache
    /// can never be sure that nothing has changed.
    pub(crate) fn prepare(&mut self, is_mapped: bool) {
        for place in self.layout.places {
            self.file.write(place, &[0]).unwrap();
        }
        self.mapped = is_mapped.then(|| HostMapping::new(&self.world.path, self.layout.len as usize));
        for device in 0..self.programs.len() {
            self.acquire(device);
            while self.acquired[device] < AHEAD {
                self.acquire(device);
            }
            while self.acquired[device] > AHEAD {
                self.release(device);
            }
        }
    }

    pub(crate) fn acquire(&mut self, device: usize) {
        self.programs[device].mapping.acquire(self.layout.part()).unwrap();
        self.acquired[device] += 1;
    }

    pub(crate) fn release(&mut self, device: usize) {
        self.programs[device].mapping.release(self.layout.part()).unwrap();
        self.acquired[device] -= 1;
        assert!(self.acquired[device] > 0, "a shape releases more than is acquired ahead");
    }

    pub(crate) fn sync(&self) {
        self.file.sync().unwrap();
    }

    pub(crate) fn flush(&self) {
        self.file.flush().unwrap();
    }

    pub(crate) fn write(&self, agent: Agent, place: usize, value: u8) {
        let at = self.layout.places[place];
        match agent {
            Agent::Device(device) => self.programs[device].store(at, &[value]),
            Agent::Cache => self.file.write(at, &[value]).unwrap(),
            Agent::Process => {
                File::options().write(true).open(&self.world.path).unwrap().write_all_at(&[value], at).unwrap();
            }
            Agent::Mapped => self.mapped.as_ref().unwrap().store(at, value),
        }
    }

    pub(crate) fn read(&self, agent: Agent, place: usize) -> u8 {
        let (at, mut seen) = (self.layout.places[place], [0x5a]);
        match agent {
            Agent::Device(device) => seen[0] = self.programs[device].load(at, 1)[0],
            Agent::Cache => assert_eq!(self.file.read(at, &mut seen).unwrap(), 1),
            Agent::Process => File::open(&self.world.path).unwrap().read_exact_at(&mut seen, at).unwrap(),
            Agent::Mapped => seen[0] = self.mapped.as_ref().unwrap().load(at),
        }
        seen[0]
    }
}
