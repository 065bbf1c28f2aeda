//! Who gets what: pure functions of what the kernel says of a process and of its descriptor.

use crate::Options;
use crate::socket::Peer;

/// What a client may have of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Frames are lent, to be written as well: the drivers give whoever imports a frame no less.
    Frames,
    /// Copies, in memory that is nobody else's.
    Copies,
}

/// What a descriptor was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// To be read.
    Read,
    /// To be read, and written anywhere.
    Write,
    /// To be neither, or to be written alone: it proves no right to read.
    Neither,
}

/// What flags of an open descriptor (`F_GETFL`) say.
pub(crate) fn opened(flags: i32) -> Opened {
    match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => Opened::Neither,
        // Who may only append may not write anywhere.
        libc::O_RDWR if flags & libc::O_APPEND == 0 => Opened::Write,
        libc::O_RDONLY | libc::O_RDWR => Opened::Read,
        _ => Opened::Neither,
    }
}

/// Whether a process may connect at all.
pub(crate) fn may_connect(peer: &Peer, own_uid: u32, options: &Options) -> bool {
    is_trusted(peer, own_uid, options) || options.serves_others
}

/// What it may have of a file that it has opened so.
pub(crate) fn access(peer: &Peer, own_uid: u32, options: &Options, opened: Opened) -> Access {
    if opened == Opened::Write && is_trusted(peer, own_uid, options) { Access::Frames } else { Access::Copies }
}

/// Whether it is of the daemon's own user, root, or of the group that may have what the user has.
pub(crate) fn is_trusted(peer: &Peer, own_uid: u32, options: &Options) -> bool {
    peer.uid == own_uid || peer.uid == 0 || options.group.is_some_and(|group| peer.groups.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { pid: 1, uid, groups: groups.to_vec() }
    }

    #[test]
    fn frames_go_to_those_who_are_trusted_and_may_write() {
        let own = Options::at("/run/socket");
        let group = Options { group: Some(7), ..own.clone() };
        for (peer, options, is_trusted) in [
            (peer(5, &[5]), &own, true),
            (peer(0, &[0]), &own, true),
            (peer(6, &[5, 7]), &own, false),
            (peer(6, &[5, 7]), &group, true),
            (peer(6, &[5]), &group, false),
        ] {
            assert_eq!(may_connect(&peer, 5, options), is_trusted);
            let frames = if is_trusted { Access::Frames } else { Access::Copies };
            assert_eq!(access(&peer, 5, options, Opened::Write), frames);
            assert_eq!(access(&peer, 5, options, Opened::Read), Access::Copies);
        }
        assert!(may_connect(&peer(6, &[]), 5, &Options { serves_others: true, ..own }));
    }

    #[test]
    fn descriptors_prove_what_they_were_opened_for() {
        assert_eq!(opened(libc::O_RDONLY | libc::O_NONBLOCK), Opened::Read);
        assert_eq!(opened(libc::O_RDWR | libc::O_DIRECT), Opened::Write);
        assert_eq!(opened(libc::O_RDWR | libc::O_APPEND), Opened::Read);
        for flags in [libc::O_WRONLY, libc::O_PATH, libc::O_PATH | libc::O_RDWR] {
            assert_eq!(opened(flags), Opened::Neither);
        }
    }
}
