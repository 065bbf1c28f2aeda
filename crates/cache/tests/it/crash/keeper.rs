//! A keeper in another process: descriptors go to it by a socket, and are there when their maker is not.

use bifolio_cache::{Client, FileId, Keeper};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

/// What is kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    regions: BTreeMap<FileId, OwnedFd>,
    frames: BTreeMap<(usize, u32), (u64, OwnedFd)>,
}

/// Keeps it in this process, and tells another one of it if there is one.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    kept: Mutex<Kept>,
    alive: BTreeSet<Client>,
    /// Who keeps it as well.
    socket: Option<OwnedFd>,
}

/// A change, with the descriptor that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    KeepRegion,
    DropRegion,
    KeepFrame,
    DropFrame,
    /// All that was kept before has been told.
    Complete,
}

const WORDS: [Word; 5] = [Word::KeepRegion, Word::DropRegion, Word::KeepFrame, Word::DropFrame, Word::Complete];

type Message = [u64; 4];

impl Holder {
    /// With clients that are there whatever happens.
    pub(crate) fn new(alive: impl IntoIterator<Item = Client>) -> Self {
        Self { alive: alive.into_iter().collect(), ..Self::default() }
    }

    /// What the other end of a socket keeps, who is told of all changes.
    pub(crate) fn of(socket: OwnedFd, alive: impl IntoIterator<Item = Client>) -> Self {
        let holder = Self::new(alive);
        while let Some((word, message, descriptor)) = receive(&socket) {
            if word == Word::Complete {
                break;
            }
            holder.lock().note(word, message, descriptor);
        }
        Self { socket: Some(socket), ..holder }
    }

    /// Tells the other end what is kept, and then keeps what it tells until it ends.
    pub(crate) fn serve(&self, socket: &OwnedFd) {
        {
            let kept = self.lock();
            for (file, region) in &kept.regions {
                tell(socket, Word::KeepRegion, [file.0, file.1, 0], Some(region));
            }
            for ((device, number), (bytes, frame)) in &kept.frames {
                tell(socket, Word::KeepFrame, [*device as u64, u64::from(*number), *bytes], Some(frame));
            }
            tell(socket, Word::Complete, [0; 3], None);
        }
        while let Some((word, message, descriptor)) = receive(socket) {
            self.lock().note(word, message, descriptor);
        }
    }

    pub(crate) fn regions(&self) -> usize {
        self.lock().regions.len()
    }

    fn change(&self, word: Word, message: [u64; 3], descriptor: Option<OwnedFd>) {
        if let Some(socket) = &self.socket {
            tell(socket, word, message, descriptor.as_ref());
        }
        self.lock().note(word, message, descriptor);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap()
    }
}

impl Kept {
    fn note(&mut self, word: Word, [one, two, three]: [u64; 3], descriptor: Option<OwnedFd>) {
        match word {
            Word::KeepRegion => _ = self.regions.insert((one, two), descriptor.unwrap()),
            Word::DropRegion => _ = self.regions.remove(&(one, two)),
            Word::KeepFrame => {
                let before = self.frames.insert((one as usize, two as u32), (three, descriptor.unwrap()));
                assert!(before.is_none(), "two frames have one number");
            }
            Word::DropFrame => _ = self.frames.remove(&(one as usize, two as u32)),
            Word::Complete => {}
        }
    }
}

impl Keeper for Holder {
    fn keep_region(&self, file: FileId, region: OwnedFd) -> io::Result<()> {
        self.change(Word::KeepRegion, [file.0, file.1, 0], Some(region));
        Ok(())
    }

    fn region(&self, file: FileId) -> Option<OwnedFd> {
        self.lock().regions.get(&file).map(|region| region.try_clone().unwrap())
    }

    fn drop_region(&self, file: FileId) {
        self.change(Word::DropRegion, [file.0, file.1, 0], None);
    }

    fn keep_frame(&self, device: usize, number: u32, bytes: u64, frame: OwnedFd) -> io::Result<()> {
        self.change(Word::KeepFrame, [device as u64, u64::from(number), bytes], Some(frame));
        Ok(())
    }

    fn frame(&self, device: usize, number: u32) -> Option<(u64, OwnedFd)> {
        let kept = self.lock();
        let (bytes, frame) = kept.frames.get(&(device, number))?;
        Some((*bytes, frame.try_clone().unwrap()))
    }

    fn drop_frame(&self, device: usize, number: u32) {
        self.change(Word::DropFrame, [device as u64, u64::from(number), 0], None);
    }

    fn frames(&self, device: usize) -> Vec<u32> {
        self.lock().frames.keys().filter(|(of, _)| *of == device).map(|(_, number)| *number).collect()
    }

    fn is_alive(&self, client: Client) -> bool {
        self.alive.contains(&client)
    }
}

/// Two ends of a socket that keeps messages apart.
pub(crate) fn socket() -> (OwnedFd, OwnedFd) {
    let mut ends: [RawFd; 2] = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for both.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
    // SAFETY: both are new and ours alone.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// Room for one descriptor beside a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 24]);

fn with_message<T>(message: &mut Message, control: &mut Control, work: impl FnOnce(*mut libc::msghdr) -> T) -> T {
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: size_of::<Message>() };
    // SAFETY: plain old data, for which zeroes are a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>();
    work(&raw mut header)
}

fn tell(socket: &OwnedFd, word: Word, [one, two, three]: [u64; 3], descriptor: Option<&OwnedFd>) {
    let number = WORDS.iter().position(|known| *known == word).unwrap() as u64;
    let (mut message, mut control) = ([number, one, two, three], Control([0; 24]));
    with_message(&mut message, &mut control, |header| {
        // SAFETY: the header names memory that is there, with room for one descriptor.
        let sent = unsafe {
            match descriptor {
                None => (*header).msg_controllen = 0,
                Some(descriptor) => {
                    let control = libc::CMSG_FIRSTHDR(header);
                    (*control).cmsg_level = libc::SOL_SOCKET;
                    (*control).cmsg_type = libc::SCM_RIGHTS;
                    (*control).cmsg_len = libc::CMSG_LEN(4) as usize;
                    libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
                }
            }
            libc::sendmsg(socket.as_raw_fd(), header, libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, size_of::<Message>() as isize, "{}", io::Error::last_os_error());
    });
}

/// None at the end of the other end.
fn receive(socket: &OwnedFd) -> Option<(Word, [u64; 3], Option<OwnedFd>)> {
    let (mut message, mut control) = ([0; 4], Control([0; 24]));
    let (got, descriptor) = with_message(&mut message, &mut control, |header| {
        // SAFETY: the header names memory that is there; a descriptor that comes is ours alone.
        unsafe {
            let got = libc::recvmsg(socket.as_raw_fd(), header, libc::MSG_CMSG_CLOEXEC);
            let control = if got > 0 { libc::CMSG_FIRSTHDR(header) } else { std::ptr::null_mut() };
            let descriptor = (!control.is_null())
                .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned()));
            (got, descriptor)
        }
    });
    if got <= 0 {
        return None;
    }
    let [word, one, two, three] = message;
    Some((WORDS[word as usize], [one, two, three], descriptor))
}
