//! The signatures themselves: a table of bytes at places, and functions for what needs more than that.

use super::{Found, Windows};

/// Where a signature lies.
#[derive(Debug, Clone, Copy)]
enum At {
    Start(u64),
    /// Bytes before the end.
    End(u64),
}

/// How a label is stored.
#[derive(Debug, Clone, Copy)]
enum Label {
    None,
    /// Text up to a zero byte, padded with zeroes or spaces: offset from the device's start, and bytes.
    Text(u64, usize),
    /// The same in UTF-16, little-endian.
    Utf16(u64, usize),
}

/// What bytes at one place say, without more to be looked at.
#[derive(Debug)]
struct Signature {
    name: &'static str,
    what: &'static str,
    at: At,
    magic: &'static [u8],
    label: Label,
}

const fn start(name: &'static str, what: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { name, what, at: At::Start(at), magic, label: Label::None }
}

const fn end(name: &'static str, what: &'static str, at: u64, magic: &'static [u8]) -> Signature {
    Signature { name, what, at: At::End(at), magic, label: Label::None }
}

const fn with_label(signature: &Signature, label: Label) -> Signature {
    let Signature { name, what, at, magic, .. } = *signature;
    Signature { name, what, at, magic, label }
}

const BTRFS: &str = "a btrfs file system";
const REISERFS: &str = "a reiserfs file system";
const OCFS2: &str = "an ocfs2 file system";
const UFS: &str = "a UFS file system";
const UDF: &str = "a UDF file system";
const LVM2: &str = "an LVM2 physical volume";
const FIRMWARE_RAID: &str = "a member of a RAID of the firmware's";
const BSD: &str = "a BSD disklabel";
const BEFS: &str = "a BeOS file system";
const HFS: &str = "an HFS file system";
const MD: &str = "a member of an md array";
const LUKS: &str = "a LUKS volume";
const SWAP: &str = "swap space";

/// After libblkid's tables, whose sources name the formats' documents; what it checks beyond the bytes is in functions
/// below.
const SIGNATURES: &[Signature] = &[
    with_label(&start("xfs", "an XFS file system", 0, b"XFSB"), Label::Text(108, 12)),
    start("xfs", "the log of an XFS file system", 0, &[0xfe, 0xed, 0xba, 0xbe]),
    with_label(&start("btrfs", BTRFS, 0x1_0040, b"_BHRfS_M"), Label::Text(0x1_012b, 256)),
    with_label(&start("f2fs", "an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]), Label::Utf16(1024 + 0x7c, 512)),
    start("erofs", "an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    start("squashfs", "a squashfs file system", 0, b"hsqs"),
    start("squashfs", "a squashfs file system", 0, b"sqsh"),
    start("cramfs", "a cramfs file system", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    start("cramfs", "a cramfs file system", 0, &[0x28, 0xcd, 0x3d, 0x45]),
    start("romfs", "a romfs file system", 0, b"-rom1fs-"),
    start("ubifs", "a UBIFS file system", 0, &[0x31, 0x18, 0x10, 0x06]),
    start("ubi", "a UBI volume", 0, b"UBI#"),
    with_label(&start("iso9660", "an ISO 9660 file system", 0x8001, b"CD001"), Label::Text(0x8028, 32)),
    start("iso9660", "a High Sierra file system", 0x8009, b"CDROM"),
    with_label(&start("jfs", "a JFS file system", 0x8000, b"JFS1"), Label::Text(0x8098, 16)),
    with_label(&start("reiserfs", REISERFS, 0x1_0034, b"ReIsErFs"), Label::Text(0x1_0064, 16)),
    with_label(&start("reiserfs", REISERFS, 0x1_0034, b"ReIsEr2Fs"), Label::Text(0x1_0064, 16)),
    with_label(&start("reiserfs", REISERFS, 0x1_0034, b"ReIsEr3Fs"), Label::Text(0x1_0064, 16)),
    start("reiserfs", REISERFS, 0x2034, b"ReIsErFs"),
    start("reiserfs", "a reiser4 file system", 0x1_0000, b"ReIsEr4"),
    with_label(&start("ocfs2", OCFS2, 0x400, b"OCFSV2"), Label::Text(0x400 + 0x140, 64)),
    with_label(&start("ocfs2", OCFS2, 0x800, b"OCFSV2"), Label::Text(0x800 + 0x140, 64)),
    with_label(&start("ocfs2", OCFS2, 0x1000, b"OCFSV2"), Label::Text(0x1000 + 0x140, 64)),
    with_label(&start("ocfs2", OCFS2, 0x2000, b"OCFSV2"), Label::Text(0x2000 + 0x140, 64)),
    start("gfs2", "a GFS2 file system", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    start("apfs", "an APFS container", 32, b"NXSB"),
    start("hpfs", "an HPFS file system", 0x2000, &[0x49, 0xe8, 0x95, 0xf9]),
    start("befs", BEFS, 32, b"1SFB"),
    start("befs", BEFS, 32, b"BFS1"),
    start("befs", BEFS, 544, b"1SFB"),
    start("befs", BEFS, 544, b"BFS1"),
    start("vmfs", "a VMFS file system", 0x20_0000, &[0x5e, 0xf1, 0xab, 0x2f]),
    start("vmfs", "a VMFS volume", 0x10_0000, &[0x0d, 0xd0, 0x01, 0xc0]),
    start("ufs", UFS, 0x55c, &[0x54, 0x19, 0x01, 0x00]),
    start("ufs", UFS, 0x255c, &[0x54, 0x19, 0x01, 0x00]),
    start("ufs", UFS, 0x255c, &[0x00, 0x01, 0x19, 0x54]),
    start("ufs", UFS, 0x255c, &[0x19, 0x01, 0x54, 0x19]),
    start("ufs", UFS, 0x1_055c, &[0x19, 0x01, 0x54, 0x19]),
    start("ufs", UFS, 0x1_055c, &[0x19, 0x54, 0x01, 0x19]),
    start("ntfs", "an NTFS file system", 3, b"NTFS    "),
    start("exfat", "an exFAT file system", 3, b"EXFAT   "),
    start("refs", "a ReFS file system", 3, b"ReFS\0\0\0\0"),
    start("bitlocker", "a BitLocker volume", 3, b"-FVE-FS-"),
    with_label(
        &start(
            "bcachefs",
            "a bcachefs file system",
            4096 + 24,
            &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
        ),
        Label::Text(4096 + 72, 32),
    ),
    with_label(
        &start(
            "bcache",
            "a bcache device",
            4096 + 24,
            &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
        ),
        Label::Text(4096 + 72, 32),
    ),
    start("lvm2", "an LVM2 snapshot", 0, b"SnAp"),
    start("verity", "a dm-verity hash device", 0, b"verity\0\0"),
    start("integrity", "a dm-integrity device", 0, b"integrt\0"),
    start("vdo", "a VDO volume", 0, b"dmvdo001"),
    start("stratis", "a Stratis pool", 512 + 4, b"!Stra0tis\x86\xff\x02^A\rh"),
    start("sgi", "an SGI partition table", 0, &[0x0b, 0xe5, 0xa9, 0x41]),
    start("bsd", BSD, 64, &[0x57, 0x45, 0x56, 0x82]),
    start("bsd", BSD, 512, &[0x57, 0x45, 0x56, 0x82]),
    start("rdb", "an Amiga partition table", 0, b"RDSK"),
    end("ddf", "a member of a DDF RAID", 512, &[0xde, 0x11, 0xde, 0x11]),
    end("firmware-raid", FIRMWARE_RAID, 1024, b"Intel Raid ISM Cfg Sig. "),
    end("firmware-raid", FIRMWARE_RAID, 1024, b"NVIDIA"),
    end("firmware-raid", FIRMWARE_RAID, 512, b"$XIDE$"),
    end("firmware-raid", FIRMWARE_RAID, 11 * 512, &[0xf3, 0x16, 0x78, 0x5a]),
    end("firmware-raid", FIRMWARE_RAID, 11 * 512, &[0xfd, 0x16, 0x78, 0x5a]),
    start("firmware-raid", FIRMWARE_RAID, 9 * 512 + 32, &[0xf0, 0x16, 0x78, 0x5a]),
    start("firmware-raid", FIRMWARE_RAID, 9 * 512 + 32, &[0xfd, 0x16, 0x78, 0x5a]),
];

/// Names of what the functions below find.
const NAMES_FOUND: &[&str] = &[
    "ext2",
    "ext3",
    "ext4",
    "jbd",
    "vfat",
    "hfs",
    "hfsplus",
    "minix",
    "nilfs2",
    "udf",
    "swap",
    "zfs",
    "lvm2",
    "luks",
    "md",
    "firmware-raid",
    "gpt",
    "mbr",
    "mac",
    "stripe",
];

/// The names of all of them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SIGNATURES.iter().map(|known| known.name).chain(NAMES_FOUND.iter().copied())
}

/// All that is recognised.
pub(super) fn known(windows: &Windows<'_>) -> Vec<Found> {
    let mut all = All { windows: *windows, found: vec![] };
    for known in SIGNATURES {
        let at = match known.at {
            At::Start(at) => Some(at),
            At::End(before) => windows.before_end(before),
        };
        if let Some(at) = at.filter(|at| windows.has(*at, known.magic)) {
            all.add(known.name, known.what, at, known.magic.len(), known.label);
        }
    }
    ext(&mut all);
    fat(&mut all);
    apple(&mut all);
    minix(&mut all);
    nilfs2(&mut all);
    udf(&mut all);
    swap(&mut all);
    zfs(&mut all);
    lvm2(&mut all);
    luks(&mut all);
    md(&mut all);
    promise(&mut all);
    stripe(&mut all);
    partitions(&mut all);
    all.found
}

/// What was found so far.
struct All<'a> {
    windows: Windows<'a>,
    found: Vec<Found>,
}

impl All<'_> {
    /// Adds a signature; several of one thing are one.
    fn add(&mut self, name: &'static str, what: &'static str, at: u64, len: usize, label: Label) {
        let mark = at..at + len as u64;
        let label = self.label(label);
        match self.found.iter_mut().find(|found| found.name == name) {
            Some(same) => {
                same.label = same.label.take().or(label);
                same.marks.push(mark);
            }
            None => self.found.push(Found { name, what, label, marks: vec![mark] }),
        }
    }

    fn has(&self, names: &[&str]) -> bool {
        self.found.iter().any(|found| names.contains(&found.name))
    }

    fn label(&self, label: Label) -> Option<String> {
        let text = match label {
            Label::None => return None,
            Label::Text(at, len) => {
                let bytes = self.windows.at(at, len)?;
                let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(len);
                String::from_utf8_lossy(&bytes[..len]).into_owned()
            }
            Label::Utf16(at, units) => {
                let bytes = self.windows.at(at, 2 * units)?;
                let (pairs, _) = bytes.as_chunks::<2>();
                let units: Vec<u16> =
                    pairs.iter().map(|pair| u16::from_le_bytes(*pair)).take_while(|unit| *unit != 0).collect();
                String::from_utf16_lossy(&units)
            }
        };
        Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
    }
}

/// ext2 to ext4, told apart by their features, and their journals.
fn ext(all: &mut All<'_>) {
    const JOURNAL_DEVICE: u32 = 8;
    // What ext3 can have: file types, recovery and meta block groups; sparse superblocks, large files and B-trees.
    const EXT3_INCOMPATIBLE: u32 = 0x16;
    const EXT3_READ_ONLY: u32 = 0x7;
    const HAS_JOURNAL: u32 = 4;
    let windows = all.windows;
    if !windows.has(1080, &[0x53, 0xef]) {
        return;
    }
    let feature = |at: u64| windows.le32(1024 + at).unwrap_or(0);
    let (compatible, incompatible, read_only) = (feature(92), feature(96), feature(100));
    let (name, what) = if incompatible & JOURNAL_DEVICE != 0 {
        ("jbd", "the journal of an ext file system")
    } else if incompatible & !EXT3_INCOMPATIBLE != 0 || read_only & !EXT3_READ_ONLY != 0 {
        ("ext4", "an ext4 file system")
    } else if compatible & HAS_JOURNAL != 0 {
        ("ext3", "an ext3 file system")
    } else {
        ("ext2", "an ext2 file system")
    };
    all.add(name, what, 1080, 2, Label::Text(1024 + 120, 16));
}

/// FAT says what it is in a field that is for people only; without it the numbers have to make sense.
fn fat(all: &mut All<'_>) {
    const WHAT: &str = "a FAT file system";
    let windows = all.windows;
    let texts: [(u64, &[u8], u64); 6] = [
        (82, b"FAT32   ", 71),
        (82, b"MSWIN", 71),
        (54, b"FAT12   ", 43),
        (54, b"FAT16   ", 43),
        (54, b"FAT     ", 43),
        (54, b"MSDOS", 43),
    ];
    if let Some((at, text, label)) = texts.into_iter().find(|(at, text, _)| windows.has(*at, text)) {
        return all.add("vfat", WHAT, at, text.len(), Label::Text(label, 11));
    }
    let number = |at| windows.le16(at).unwrap_or(0);
    let byte = |at| windows.byte(at).unwrap_or(0);
    let makes_sense = windows.has(510, &[0x55, 0xaa])
        && matches!(byte(0), 0xeb | 0xe9)
        && matches!(number(11), 512 | 1024 | 2048 | 4096)
        && byte(13).is_power_of_two()
        && number(14) > 0
        && matches!(byte(16), 1 | 2)
        && matches!(byte(21), 0xf0 | 0xf8..=0xff)
        && !all.has(&["ntfs", "exfat", "bitlocker", "refs"]);
    if makes_sense {
        all.add("vfat", WHAT, 0, 62, Label::None);
    }
}

/// HFS and HFS+, and Apple's partition table.
fn apple(all: &mut All<'_>) {
    let windows = all.windows;
    let version = windows.array(1026).map_or(0, u16::from_be_bytes);
    if (windows.has(1024, b"H+") && version == 4) || (windows.has(1024, b"HX") && version == 5) {
        all.add("hfsplus", "an HFS+ file system", 1024, 2, Label::None);
    }
    let block = windows.array(1024 + 20).map_or(0, u32::from_be_bytes);
    if windows.has(1024, b"BD") && block != 0 && block.is_multiple_of(512) {
        all.add("hfs", HFS, 1024, 2, Label::None);
    }
    if windows.has(0, b"ER") && (windows.has(512, b"PM") || windows.has(2048, b"PM")) {
        all.add("mac", "an Apple partition table", 0, 2, Label::None);
    }
}

fn minix(all: &mut All<'_>) {
    let windows = all.windows;
    let known = |at, magics: &[u16]| {
        windows.le16(at).is_some_and(|magic| magics.contains(&magic) || magics.contains(&magic.swap_bytes()))
    };
    let is_old = known(1040, &[0x137f, 0x138f, 0x2468, 0x2478]);
    // Two bytes are met by chance: there have to be maps of inodes and of zones, which are small, as well.
    let maps = if is_old { [1024 + 4, 1024 + 6] } else { [1024 + 6, 1024 + 8] };
    let has_maps = || maps.iter().all(|at| windows.le16(*at).is_some_and(|blocks| (1..=4096).contains(&blocks)));
    let at = if is_old { 1040 } else { 1048 };
    if (is_old || known(1048, &[0x4d5a])) && has_maps() {
        all.add("minix", "a Minix file system", at, 2, Label::None);
    }
}

/// Of which there is a second superblock at the end.
fn nilfs2(all: &mut All<'_>) {
    let second = (all.windows.size / 4096).checked_sub(1).map(|block| block * 4096);
    for at in [Some(1024), second].into_iter().flatten() {
        let windows = all.windows;
        // Revision, magic, and the bytes of the superblock that are summed.
        let is_there = windows.le32(at).is_some_and(|revision| revision <= 2)
            && windows.le16(at + 6) == Some(0x3434)
            && windows.le16(at + 8).is_some_and(|bytes| (64..=1024).contains(&bytes));
        if is_there {
            all.add("nilfs2", "a NILFS2 file system", at + 6, 2, Label::Text(at + 152, 80));
        }
    }
}

/// A descriptor of the volume's structure in one of the sectors from 32 KiB on.
fn udf(all: &mut All<'_>) {
    let sectors = [2048_u64, 4096].into_iter().flat_map(|bytes| (0..64).map(move |number| 0x8000 + number * bytes));
    let windows = all.windows;
    if let Some(at) = sectors.map(|at| at + 1).find(|at| windows.has(*at, b"NSR02") || windows.has(*at, b"NSR03")) {
        all.add("udf", UDF, at, 5, Label::None);
    }
}

/// At the end of a page, whose size depends on the machine.
fn swap(all: &mut All<'_>) {
    let texts: [&[u8]; 6] =
        [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0", b"LINHIB0001"];
    for page in [0x1000, 0x2000, 0x4000, 0x8000, 0x1_0000] {
        let at = page - 10;
        if let Some(text) = texts.iter().find(|text| all.windows.has(at, text)) {
            all.add("swap", SWAP, at, text.len(), Label::Text(1024 + 28, 16));
        }
    }
}

/// Four labels, each with an array of uberblocks in its second half.
fn zfs(all: &mut All<'_>) {
    const LABEL_BYTES: u64 = 256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let windows = all.windows;
    let end = windows.size / LABEL_BYTES * LABEL_BYTES;
    let labels = [Some(0), Some(LABEL_BYTES), end.checked_sub(2 * LABEL_BYTES), end.checked_sub(LABEL_BYTES)];
    for label in labels.into_iter().flatten() {
        for at in (LABEL_BYTES / 2..LABEL_BYTES).step_by(1024).map(|inside| label + inside) {
            if windows.le64(at) == Some(MAGIC) || windows.be64(at) == Some(MAGIC) {
                all.add("zfs", "a member of a ZFS pool", at, 8, Label::None);
            }
        }
    }
}

/// A label in one of the first four sectors; the first version began with two letters.
fn lvm2(all: &mut All<'_>) {
    for sector in 0..4 {
        let at = sector * 512;
        if all.windows.has(at, b"LABELONE") && all.windows.has(at + 24, b"LVM2 001") {
            all.add("lvm2", LVM2, at, 8, Label::None);
        }
    }
    let is_first = all.windows.has(0, b"HM") && matches!(all.windows.le16(2), Some(1 | 2));
    if is_first {
        all.add("lvm2", "an LVM1 physical volume", 0, 2, Label::None);
    }
}

/// Either copy of the header. The second one says where it lies: one in somebody's data does not count.
fn luks(all: &mut All<'_>) {
    let windows = all.windows;
    if windows.has(0, b"LUKS\xba\xbe") {
        let label = if windows.has(6, &[0, 2]) { Label::Text(24, 48) } else { Label::None };
        all.add("luks", LUKS, 0, 6, label);
    }
    for at in (14..=22).map(|power| 1_u64 << power) {
        if windows.has(at, b"SKUL\xba\xbe") && windows.be64(at + 256) == Some(at) {
            all.add("luks", LUKS, at, 6, Label::Text(at + 24, 48));
        }
    }
}

/// Superblocks of all versions, wherever they lie.
fn md(all: &mut All<'_>) {
    const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
    const SWAPPED: [u8; 4] = 0xa92b_4efc_u32.to_be_bytes();
    let windows = all.windows;
    let v0_90 = (windows.size & !0xffff).checked_sub(0x1_0000);
    if let Some(at) = v0_90.filter(|at| windows.has(*at, &MAGIC) || windows.has(*at, &SWAPPED)) {
        all.add("md", MD, at, 4, Label::None);
    }
    let v1_0 = (windows.size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    for at in [Some(0), Some(4096), v1_0].into_iter().flatten() {
        if windows.has(at, &MAGIC) && windows.le32(at + 4) == Some(1) {
            all.add("md", MD, at, 4, Label::Text(at + 32, 32));
        }
    }
}

/// Promise has put its metadata into many places.
fn promise(all: &mut All<'_>) {
    const SECTORS: [u64; 13] = [63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087];
    let text = b"Promise Technology, Inc.";
    let windows = all.windows;
    for at in SECTORS.into_iter().filter_map(|sectors| windows.before_end(sectors * 512)) {
        if windows.has(at, text) {
            all.add("firmware-raid", FIRMWARE_RAID, at, text.len(), Label::None);
        }
    }
}

/// The descriptor of a striped set: our own format, a short text of these four keys.
fn stripe(all: &mut All<'_>) {
    let windows = all.windows;
    let Some(text) = windows.at(0, windows.size.min(64 << 10) as usize).and_then(|text| str::from_utf8(text).ok())
    else {
        return;
    };
    let has = |key: &str| {
        let value =
            |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        text.lines().any(value)
    };
    if ["version", "chunk", "size", "members"].into_iter().all(has) {
        all.add("stripe", "the descriptor of a striped set", 0, text.len(), Label::None);
    }
}

/// GPT, both copies, for sectors of 512 and 4096 bytes; the table of MBR, or a boot sector, where it is by itself.
fn partitions(all: &mut All<'_>) {
    let windows = all.windows;
    for sector in [512, 4096] {
        for at in [Some(sector), (windows.size / sector).checked_sub(1).map(|last| last * sector)].into_iter().flatten()
        {
            // A header says which sector it is in: one in somebody's data does not count.
            if windows.has(at, b"EFI PART") && windows.le64(at + 24) == Some(at / sector) {
                all.add("gpt", "a GPT partition table", at, 8, Label::None);
            }
        }
    }
    // Those have the same last two bytes.
    let is_boot_sector = all.has(&["vfat", "ntfs", "exfat", "bitlocker", "refs"]);
    if windows.has(510, &[0x55, 0xaa]) && !is_boot_sector {
        all.add("mbr", "an MBR partition table or boot sector", 510, 2, Label::None);
    }
}

/// Place, whether it counts from the end, bytes and name of each signature of the table.
#[cfg(test)]
pub(super) fn places() -> Vec<(u64, bool, &'static [u8], &'static str)> {
    let place = |known: &Signature| match known.at {
        At::Start(at) => (at, false, known.magic, known.name),
        At::End(at) => (at, true, known.magic, known.name),
    };
    SIGNATURES.iter().map(place).collect()
}
