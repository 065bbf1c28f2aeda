//! What the keeper holds for the server, and the catalogue that says what it is: numbers in memory that the keeper holds
//! as well, so that the next server knows.
//!
//! A row is written once the keeper has the descriptor that belongs to it, its first word at last; and it is emptied, the
//! first word first, before the keeper is told to forget. So a row is true whenever the server ends, and a descriptor
//! without one is forgotten by the next.

use crate::fault::{Point, at};
use bifolio_cache::{Client, FileId, Keeper, LeaseNumber, Reader};
use bifolio_keeper::{SharedMemory, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Things at most: rows take memory as they are used.
const ROWS_MAX: u64 = 1 << 20;
const ROW_WORDS: usize = 6;

/// Tells a catalogue from other memory, and from one of another layout.
const MAGIC: u64 = u64::from_le_bytes(*b"bifodir\x01");

/// Words before the first row.
const HEAD_WORDS: usize = 128;
const HEAD_MAGIC: usize = 0;
const HEAD_CLIENT: usize = 1;
const HEAD_COPY: usize = 2;
/// Rows that were ever used.
const HEAD_USED: usize = 3;
/// Servers that there were.
const HEAD_SERVERS: usize = 4;
/// The largest numbers of frames, by device.
const HEAD_FRAMES: usize = 64;
const DEVICES_MAX: usize = HEAD_WORDS - HEAD_FRAMES;

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Thing {
    /// A file's region.
    Region(FileId),
    /// A file, opened to be read, as long as it is cached.
    File(FileId),
    /// A frame of a device.
    Frame(u64, u64),
    /// A client's connection.
    Connection(Client),
    /// A client's file, under the client's number. There is no descriptor of it: the file has one.
    Handle(Client, u64),
    /// A frame of a device, by its number, that is left to a client who has acquired the version in it under a number. There
    /// is no other descriptor of it than the frame's.
    Left(u64, u64, Client, LeaseNumber),
}

/// The kind of such a row has the device and the number of the frame above it.
const LEFT: u64 = 6;
const KIND_BITS: u32 = 8;
const NUMBER_BITS: u32 = 32;

/// Numbers in memory that outlives the server.
#[derive(Debug)]
pub(crate) struct Catalogue(SharedMemory);

/// All of it.
#[derive(Debug)]
pub(crate) struct Holding {
    worker: Worker,
    catalogue: Catalogue,
    held: Mutex<Held>,
    /// Clients that were there when this server began, or have come since.
    alive: Mutex<BTreeSet<Client>>,
    /// Who hears of readers whose versions are old.
    news: Mutex<Option<Sender<(usize, Reader)>>>,
}

#[derive(Debug, Default)]
struct Held {
    things: BTreeMap<Thing, Row>,
    free: Vec<u32>,
    used: u32,
}

#[derive(Debug)]
struct Row {
    number: u32,
    /// What else is known of it.
    notes: [u64; 3],
    descriptor: Option<OwnedFd>,
}

impl Thing {
    fn words(self) -> [u64; 3] {
        match self {
            Self::Region((device, inode)) => [1, device, inode],
            Self::File((device, inode)) => [2, device, inode],
            Self::Frame(device, number) => [3, device, number],
            Self::Connection(client) => [4, client, 0],
            Self::Handle(client, number) => [5, client, number],
            Self::Left(device, number, client, lease) => {
                [LEFT | (device << NUMBER_BITS | number) << KIND_BITS, client, lease]
            }
        }
    }

    fn of([kind, one, two]: [u64; 3]) -> Option<Self> {
        Some(match kind {
            1 => Self::Region((one, two)),
            2 => Self::File((one, two)),
            3 => Self::Frame(one, two),
            4 => Self::Connection(one),
            5 => Self::Handle(one, two),
            _ if kind & ((1 << KIND_BITS) - 1) == LEFT => {
                let frame = kind >> KIND_BITS;
                Self::Left(frame >> NUMBER_BITS, frame & ((1 << NUMBER_BITS) - 1), one, two)
            }
            _ => return None,
        })
    }
}

impl Catalogue {
    /// An empty one.
    pub(crate) fn create() -> bifolio_keeper::Result<Self> {
        let words = HEAD_WORDS + ROWS_MAX as usize * ROW_WORDS;
        let catalogue = Self(SharedMemory::create("bifolio-catalogue", words)?);
        catalogue.0.words()[HEAD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(catalogue)
    }

    fn open(fd: OwnedFd) -> bifolio_keeper::Result<Self> {
        let catalogue = Self(SharedMemory::map(fd)?);
        let words = catalogue.0.words();
        if words.len() < HEAD_WORDS + ROWS_MAX as usize * ROW_WORDS
            || words[HEAD_MAGIC].load(Ordering::Acquire) != MAGIC
        {
            let detail =
                "what the keeper holds is the catalogue of another version: end the daemon, and start it again";
            return Err(bifolio_keeper::Error::new(bifolio_keeper::ErrorKind::Damaged, detail));
        }
        Ok(catalogue)
    }

    fn row(&self, number: u32) -> &[AtomicU64] {
        let at = HEAD_WORDS + number as usize * ROW_WORDS;
        &self.0.words()[at..at + ROW_WORDS]
    }

    fn next(&self, head: usize) -> u64 {
        self.0.words()[head].fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl AsFd for Catalogue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Holding {
    /// What the keeper holds, in which nothing is without a row.
    pub(crate) fn find(mut worker: Worker, catalogue: OwnedFd) -> bifolio_keeper::Result<Self> {
        let catalogue = Catalogue::open(catalogue)?;
        let mut descriptors: BTreeMap<u32, OwnedFd> = worker.take_memory().into_iter().collect();
        let used = catalogue.0.words()[HEAD_USED].load(Ordering::Acquire).min(ROWS_MAX) as u32;
        let mut held = Held { used, ..Held::default() };
        for number in 0..held.used {
            let row = catalogue.row(number);
            let word = |at: usize| row[at].load(Ordering::Acquire);
            if let Some(thing) = Thing::of([word(0), word(1), word(2)]) {
                let (notes, descriptor) = ([word(3), word(4), word(5)], descriptors.remove(&number));
                held.things.insert(thing, Row { number, notes, descriptor });
            }
        }
        let taken: BTreeSet<u32> = held.things.values().map(|row| row.number).collect();
        held.free = (0..held.used).filter(|number| !taken.contains(number)).collect();
        for number in descriptors.into_keys() {
            worker.release(number);
        }
        Ok(Self { worker, catalogue, held: Mutex::new(held), alive: Mutex::default(), news: Mutex::default() })
    }

    /// Readers who see an older version than the file's from now on.
    pub(crate) fn news(&self) -> Receiver<(usize, Reader)> {
        let (tell, hear) = channel();
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
        hear
    }

    /// Says that this server serves.
    pub(crate) fn ready(&self) -> bifolio_keeper::Result<()> {
        self.worker.ready()
    }

    /// A number that no client had, or no copy.
    pub(crate) fn new_client(&self) -> Client {
        self.catalogue.next(HEAD_CLIENT)
    }

    /// Which server of this keeper's it is, from 1 on; asked for once.
    pub(crate) fn new_server(&self) -> u64 {
        self.catalogue.next(HEAD_SERVERS)
    }

    /// The same for a private copy of a frame.
    pub(crate) fn new_copy(&self) -> u32 {
        (self.catalogue.next(HEAD_COPY) % (1 << 31)) as u32
    }

    /// A client is there.
    pub(crate) fn note_alive(&self, client: Client) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).insert(client);
    }

    /// It is not any more.
    pub(crate) fn note_gone(&self, client: Client) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).remove(&client);
    }

    /// Holds something; when this returns, it is held. What was held for it before is let go.
    pub(crate) fn hold(&self, thing: Thing, notes: [u64; 3], descriptor: Option<OwnedFd>) -> io::Result<()> {
        self.let_go(thing);
        let number = {
            let mut held = self.lock();
            let number = held.free.pop().unwrap_or(held.used);
            if u64::from(number) >= ROWS_MAX {
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("{ROWS_MAX} things are held at most")));
            }
            held.used = held.used.max(number + 1);
            self.catalogue.0.words()[HEAD_USED].fetch_max(held.used.into(), Ordering::Release);
            number
        };
        if let Some(descriptor) = &descriptor
            && let Err(error) = self.worker.keep(number, descriptor)
        {
            self.lock().free.push(number);
            return Err(io::Error::other(error.to_string()));
        }
        at(Point::Kept);
        let [kind, one, two] = thing.words();
        let row = self.catalogue.row(number);
        for (word, value) in row[1..].iter().zip([one, two, notes[0], notes[1], notes[2]]) {
            word.store(value, Ordering::Relaxed);
        }
        row[0].store(kind, Ordering::Release);
        at(Point::Noted);
        self.lock().things.insert(thing, Row { number, notes, descriptor });
        Ok(())
    }

    /// Notes something else of what is held; each number by itself, the last one first.
    pub(crate) fn note(&self, thing: Thing, notes: [u64; 3]) {
        let mut held = self.lock();
        let Some(row) = held.things.get_mut(&thing) else { return };
        row.notes = notes;
        let words = &self.catalogue.row(row.number)[3..];
        for (word, value) in words.iter().zip(notes).rev() {
            word.store(value, Ordering::Release);
        }
    }

    /// Holds it no longer.
    pub(crate) fn let_go(&self, thing: Thing) {
        let Some(row) = self.lock().things.remove(&thing) else { return };
        self.catalogue.row(row.number)[0].store(0, Ordering::Release);
        at(Point::Emptied);
        if row.descriptor.is_some() {
            self.worker.release(row.number);
        }
        self.lock().free.push(row.number);
    }

    /// The descriptor of something, and what else is known of it.
    pub(crate) fn get(&self, thing: Thing) -> Option<(Option<OwnedFd>, [u64; 3])> {
        let held = self.lock();
        let row = held.things.get(&thing)?;
        let descriptor = match &row.descriptor {
            Some(descriptor) => Some(descriptor.try_clone().ok()?),
            None => None,
        };
        Some((descriptor, row.notes))
    }

    /// All that is held.
    pub(crate) fn things(&self) -> Vec<Thing> {
        self.lock().things.keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper for Holding {
    fn keep_region(&self, file: FileId, region: OwnedFd) -> io::Result<()> {
        self.hold(Thing::Region(file), [0; 3], Some(region))
    }

    fn region(&self, file: FileId) -> Option<OwnedFd> {
        self.get(Thing::Region(file))?.0
    }

    fn drop_region(&self, file: FileId) {
        self.let_go(Thing::Region(file));
    }

    fn keep_frame(&self, device: usize, number: u32, bytes: u64, frame: OwnedFd) -> io::Result<()> {
        let last = &self.catalogue.0.words()[HEAD_FRAMES + device.min(DEVICES_MAX - 1)];
        last.fetch_max(number.into(), Ordering::Release);
        self.hold(Thing::Frame(device as u64, number.into()), [bytes, 0, 0], Some(frame))
    }

    fn frame(&self, device: usize, number: u32) -> Option<(u64, OwnedFd)> {
        let (descriptor, notes) = self.get(Thing::Frame(device as u64, number.into()))?;
        Some((notes[0], descriptor?))
    }

    fn drop_frame(&self, device: usize, number: u32) {
        self.let_go(Thing::Frame(device as u64, number.into()));
    }

    fn frames(&self, device: usize) -> Vec<u32> {
        let held = self.lock();
        let number = |thing: &Thing| match thing {
            Thing::Frame(of, number) if *of == device as u64 => Some(*number as u32),
            _ => None,
        };
        held.things.keys().filter_map(number).collect()
    }

    fn last_frame(&self, device: usize) -> u32 {
        self.catalogue.0.words()[HEAD_FRAMES + device.min(DEVICES_MAX - 1)].load(Ordering::Acquire) as u32
    }

    fn leave_frame(&self, device: usize, number: u32, reader: Reader) -> io::Result<()> {
        self.hold(left(device, number, reader), [reader.at, 0, 0], None)?;
        if let Some(news) = &*self.news.lock().unwrap_or_else(PoisonError::into_inner) {
            // At its end nobody hears of it.
            let _ = news.send((device, reader));
        }
        Ok(())
    }

    fn end_left(&self, device: usize, number: u32, reader: Reader) {
        self.let_go(left(device, number, reader));
    }

    fn left_frames(&self, device: usize) -> Vec<(u32, Reader)> {
        let held = self.lock();
        let reader = |(thing, row): (&Thing, &Row)| match *thing {
            Thing::Left(of, number, client, lease) if of == device as u64 => {
                Some((number as u32, Reader { client, lease, at: row.notes[0] }))
            }
            _ => None,
        };
        held.things.iter().filter_map(reader).collect()
    }

    fn is_alive(&self, client: Client) -> bool {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }
}

fn left(device: usize, number: u32, reader: Reader) -> Thing {
    Thing::Left(device as u64, number.into(), reader.client, reader.lease)
}
