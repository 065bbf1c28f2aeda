use super::*;
use crate::faults::FaultyDevice;
use proptest::prelude::*;

const MIB: usize = 1 << 20;

/// What is found in a device that is empty but for these bytes.
fn found(size: usize, bytes: &[(usize, &[u8])]) -> Vec<Found> {
    let mut content = vec![0; size];
    for (at, bytes) in bytes {
        content[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    of(&content)
}

fn of(content: &[u8]) -> Vec<Found> {
    let head = &content[..content.len().min(HEAD_BYTES as usize)];
    let tail = &content[content.len() - content.len().min(TAIL_BYTES as usize)..];
    recognise(&Windows { size: content.len() as u64, head, tail })
}

#[track_caller]
fn only(size: usize, bytes: &[(usize, &[u8])], name: &str) -> Found {
    let mut found = found(size, bytes);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    let found = found.remove(0);
    assert_eq!(found.name, name);
    assert!(names().contains(&name), "{name} can be allowed");
    found
}

#[test]
fn what_is_empty_holds_nothing() {
    for size in [0, 1, 511, 512, 4096, MIB, 9 * MIB] {
        assert_eq!(found(size, &[]), []);
    }
}

#[test]
fn every_signature_of_the_table_is_found_by_itself() {
    for (at, from_end, magic, name) in table::places() {
        // Small, and larger than both windows.
        for size in [4 * MIB, 9 * MIB] {
            let at = if from_end { size - at as usize } else { at as usize };
            let found = only(size, &[(at, magic)], name);
            assert_eq!(found.marks, [at as u64..(at + magic.len()) as u64], "{name}");
        }
    }
}

#[test]
fn ext_is_told_apart_by_its_features() {
    let magic: (usize, &[u8]) = (1080, &[0x53, 0xef]);
    let label: (usize, &[u8]) = (1144, b"backup");
    assert_eq!(only(MIB, &[magic, label], "ext2").label.as_deref(), Some("backup"));
    only(MIB, &[magic, (1116, &[4])], "ext3");
    only(MIB, &[magic, (1116, &[4]), (1120, &[0x42, 2])], "ext4");
    only(MIB, &[magic, (1124, &[0x08])], "ext4");
    only(MIB, &[magic, (1120, &[8])], "jbd");
}

#[test]
fn fat_is_found_by_its_text_and_by_its_numbers() {
    let named = only(MIB, &[(82, b"FAT32   "), (71, b"STICK      "), (510, &[0x55, 0xaa])], "vfat");
    assert_eq!(named.label.as_deref(), Some("STICK"));
    let numbers: &[(usize, &[u8])] =
        &[(0, &[0xeb, 0x3c, 0x90]), (11, &[0, 2, 4, 1, 0, 2]), (21, &[0xf8]), (510, &[0x55, 0xaa])];
    only(MIB, numbers, "vfat");
    // Code that boots, and a table behind it.
    only(MIB, &[(0, &[0xeb, 0x63, 0x90]), (510, &[0x55, 0xaa])], "mbr");
    only(MIB, &[(0, &[0xeb, 0x52, 0x90]), (3, b"NTFS    "), (510, &[0x55, 0xaa])], "ntfs");
}

#[test]
fn both_copies_of_gpt_count_and_one_in_somebodys_data_does_not() {
    let header = |lba: u64| [&b"EFI PART"[..], &[0; 16], &lba.to_le_bytes()].concat();
    let last = (4 * MIB / 512 - 1) as u64;
    let both = only(4 * MIB, &[(512, &header(1)), (4 * MIB - 512, &header(last))], "gpt");
    assert_eq!(both.marks.len(), 2);
    only(4 * MIB, &[(4 * MIB - 512, &header(last))], "gpt");
    only(4 * MIB, &[(4096, &header(1))], "gpt");
    only(4 * MIB, &[(512, &header(77))], DATA);
    let protective = found(MIB, &[(450, &[0xee]), (510, &[0x55, 0xaa]), (512, &header(1))]);
    assert_eq!(protective.iter().map(|found| found.name).collect::<Vec<_>>(), ["gpt", "mbr"]);
}

#[test]
fn luks_is_found_by_either_copy_of_its_header() {
    let label: (usize, &[u8]) = (24, b"secret\x1b[2J");
    let first = only(MIB, &[(0, b"LUKS\xba\xbe\0\x02"), label], "luks");
    assert_eq!(first.describe(), "a LUKS volume \"secret\\u{1b}[2J\" (at byte 0)");
    only(MIB, &[(0, b"LUKS\xba\xbe\0\x01")], "luks");
    for at in [0x4000_usize, 0x40_0000] {
        let size = 8 * MIB;
        only(size, &[(at, b"SKUL\xba\xbe\0\x02"), (at + 256, &(at as u64).to_be_bytes())], "luks");
        only(size, &[(at, b"SKUL\xba\xbe\0\x02"), (at + 256, &7_u64.to_be_bytes())], DATA);
    }
}

#[test]
fn members_of_md_are_found_wherever_their_superblock_lies() {
    let block = [&0xa92b_4efc_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 24], b"host:5\0"].concat();
    let size = 3 * MIB + 5000;
    for at in [0, 4096, ((size / 512 - 16) & !7) * 512] {
        assert_eq!(only(size, &[(at, &block)], "md").label.as_deref(), Some("host:5"));
    }
    let old = (size & !0xffff) - 0x1_0000;
    only(size, &[(old, &0xa92b_4efc_u32.to_le_bytes())], "md");
    only(size, &[(old, &0xa92b_4efc_u32.to_be_bytes())], "md");
}

#[test]
fn formats_with_checks_of_their_own_are_found() {
    let size = 4 * MIB;
    for page in [4096, 8192, 16384, 32768, 65536] {
        let swap = only(size, &[(page - 10, b"SWAPSPACE2"), (1052, b"spare")], "swap");
        assert_eq!(swap.label.as_deref(), Some("spare"));
    }
    let uberblock = 0x00ba_b10c_u64;
    only(size, &[((128 << 10) + 4096, &uberblock.to_le_bytes())], "zfs");
    only(size, &[(size - (128 << 10), &uberblock.to_be_bytes())], "zfs");
    only(size, &[(512, b"LABELONE"), (536, b"LVM2 001")], "lvm2");
    only(size, &[(0, b"HM\x01\0")], "lvm2");
    only(size, &[(0x8001, b"BEA01"), (0x8801, b"NSR03")], "udf");
    let nilfs2: &[u8] = &[2, 0, 0, 0, 0, 0, 0x34, 0x34, 0x18, 1];
    only(size, &[(1024, nilfs2)], "nilfs2");
    only(size, &[(size - 4096, nilfs2)], "nilfs2");
    only(size, &[(1028, &[1, 0, 1, 0]), (1040, &[0x8f, 0x13])], "minix");
    only(size, &[(1024, b"H+\0\x04")], "hfsplus");
    only(size, &[(1024, b"BD"), (1044, &[0, 0, 2, 0])], "hfs");
    only(size, &[(0, b"ER"), (512, b"PM")], "mac");
    only(size, &[(size - 399 * 512, b"Promise Technology, Inc.")], "firmware-raid");
    let set = "version = 1\nchunk = \"512K\"\nsize = \"1G\"\nmembers = [\"a\", \"b\"]\n";
    let mut file = vec![0; set.len()];
    file.copy_from_slice(set.as_bytes());
    assert_eq!(of(&file)[0].name, "stripe");
}

#[test]
fn what_is_not_known_is_data_at_its_first_byte() {
    assert_eq!(only(MIB, &[(70_001, &[1])], DATA).offset(), 70_001);
    assert_eq!(only(9 * MIB, &[(9 * MIB - 1, &[1])], DATA).offset(), 9 * MIB as u64 - 1);
    // Between the windows nothing is looked at.
    assert_eq!(found(9 * MIB, &[(6 * MIB, &[1])]), []);
}

/// Symptom: `volume create raid6 fs z1 z2 z3` overwrote an ext4, as members of arrays were all that was looked for.
#[test]
fn a_refusal_names_all_that_would_be_lost_and_how_to_allow_it() {
    let found = |name, what, label: Option<&str>, at: u64| Found {
        name,
        what,
        label: label.map(str::to_owned),
        marks: vec![at..at + 2],
    };
    let all = [
        ("fs".to_owned(), vec![found("ext4", "an ext4 file system", Some("back\nup"), 1080)]),
        ("empty".to_owned(), vec![]),
        ("disk".to_owned(), vec![found("gpt", "a GPT", None, 512), found("mbr", "an MBR", None, 510)]),
    ];
    let error = refuse(&all, &Overwrite::Nothing).unwrap_err();
    assert_eq!((error.kind(), error.subject()), (ErrorKind::Exists, "fs"));
    assert_eq!(
        error.to_string(),
        "fs: it holds an ext4 file system \"back\\nup\" (at byte 1080); disk: it holds a GPT (at byte 512) and an MBR (at \
         byte 510); nothing was overwritten; --force=ext4,gpt,mbr does that"
    );
    let named = |names: &[&str]| Overwrite::Named(names.iter().map(|name| (*name).to_owned()).collect());
    let error = refuse(&all, &named(&["ext4", "gpt"])).unwrap_err().to_string();
    assert!(
        error.starts_with("disk: it holds an MBR (at byte 510);") && error.contains("--force=ext4,gpt,mbr"),
        "{error}"
    );
    assert!(refuse(&all, &named(&["luks", "xfs"])).is_err());
    assert!(refuse(&all, &named(&["ext4", "gpt", "mbr"])).is_ok());
    assert!(refuse(&all, &Overwrite::Anything).is_ok());
    assert!(refuse(&all[1..2], &Overwrite::Nothing).is_ok());
}

#[test]
fn erased_signatures_are_found_no_more_also_those_below_others() {
    let mut content = vec![0; 4 * MIB];
    for (at, bytes) in [(82, &b"FAT32   "[..]), (510, &[0x55, 0xaa]), (1080, &[0x53, 0xef]), (0x1_0040, b"_BHRfS_M")] {
        content[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let device = FaultyDevice::new("disk", content);
    erase(&device, |_| true).unwrap();
    assert_eq!(look(&device).unwrap(), []);
    // Only what is asked for.
    let device = FaultyDevice::new("disk", device.content());
    device.write(1080, &[0x53, 0xef]).unwrap();
    erase(&device, |mark| mark.start >= 4096).unwrap();
    assert_eq!(look(&device).unwrap()[0].name, "ext2");
}

proptest! {
    /// Whatever the bytes and however small the device: every mark lies inside, and erasing ends.
    #[test]
    fn marks_lie_inside_and_go_away(
        size in prop::sample::select(vec![0_usize, 1, 5, 512, 1536, 4096, 66_000 / 512 * 512, 300 * 1024]),
        pieces in prop::collection::vec((0_usize..60, any::<u16>(), 0_u8..4), 0..12),
    ) {
        let places = table::places();
        let mut content = vec![0; size];
        for (which, jitter, kind) in pieces {
            let (at, from_end, magic, _) = places[which % places.len()];
            let at = if from_end { size.wrapping_sub(at as usize) } else { at as usize };
            let at = if kind == 0 { usize::from(jitter) } else { at };
            if let Some(part) = at.checked_add(magic.len()).and_then(|end| content.get_mut(at..end)) {
                part.copy_from_slice(magic);
            }
        }
        for found in of(&content) {
            prop_assert!(found.marks.iter().all(|mark| mark.start < mark.end && mark.end <= size as u64), "{found:?}");
            prop_assert!(found.describe().len() > 10 && names().contains(&found.name));
        }
        if size.is_multiple_of(512) {
            let device = FaultyDevice::new("any", content);
            erase(&device, |_| true).unwrap();
            prop_assert!(look(&device).unwrap().iter().all(|found| found.name == DATA));
        }
    }
}
