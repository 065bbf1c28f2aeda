//! Sizes that nobody chose (pure).

const MIB: u64 = 1 << 20;

/// What there is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Memory of the machine.
    pub memory: u64,
    /// Room on the backing's file system, or of the block device that is the backing.
    pub room: u64,
    /// The room is a block device's, and nobody else's.
    pub has_room_alone: bool,
    /// Device memory, and what of it nobody has.
    pub device_total: u64,
    pub device_free: u64,
}

/// What is taken, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Content of the backing.
    pub size: u64,
    /// Device memory.
    pub device_memory: u64,
    /// Device memory that is left to others.
    pub left_to_others: u64,
}

/// As much swap as there is memory, if that takes at most a quarter of a file system's room; half of the free device
/// memory in front of it; and a tenth of the device, or 512 MiB, is left to others. What was chosen stays. None where
/// there is too little room.
pub fn sizes(found: Found, size: Option<u64>, device_memory: Option<u64>, left: Option<u64>) -> Option<Sizes> {
    let room = if found.has_room_alone { found.room } else { found.room / 4 };
    let size = size.unwrap_or_else(|| if found.has_room_alone { room } else { found.memory.min(room) } / MIB * MIB);
    if size < 16 * MIB && !found.has_room_alone && found.room < 64 * MIB {
        return None;
    }
    let left_to_others = left.unwrap_or_else(|| (found.device_total / 10).max(512 * MIB).min(found.device_total / 4));
    let spare = found.device_free.saturating_sub(left_to_others);
    let device_memory = device_memory.unwrap_or_else(|| (found.device_free / 2).min(spare).min(size) / MIB * MIB);
    Some(Sizes { size, device_memory, left_to_others })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const DESKTOP: Found = Found {
        memory: 16 * GIB,
        room: 200 * GIB,
        has_room_alone: false,
        device_total: 12 * GIB,
        device_free: 10 * GIB,
    };

    #[test]
    fn a_desktop_gets_its_memory_again_and_keeps_most_of_its_device() {
        let sizes = sizes(DESKTOP, None, None, None).unwrap();
        assert_eq!((sizes.size, sizes.device_memory), (16 * GIB, 5 * GIB));
        assert_eq!(sizes.left_to_others, 12 * GIB / 10);
    }

    #[test]
    fn what_was_chosen_stays_and_little_room_is_not_taken() {
        let small = Found { room: 8 * GIB, ..DESKTOP };
        assert_eq!(sizes(small, None, None, None).unwrap().size, 2 * GIB);
        assert_eq!(
            sizes(small, Some(3 * GIB), Some(GIB), Some(0)).unwrap(),
            Sizes { size: 3 * GIB, device_memory: GIB, left_to_others: 0 }
        );
        assert_eq!(sizes(Found { room: 20 * MIB, ..DESKTOP }, None, None, None), None);
        let full = Found { device_free: GIB, ..DESKTOP };
        assert_eq!(sizes(full, None, None, None).unwrap().device_memory, 0, "others have it");
        let disk = Found { room: 4 * GIB, has_room_alone: true, ..DESKTOP };
        assert_eq!(sizes(disk, None, None, None).unwrap().size, 4 * GIB);
    }
}
