//! `bifolio volume create raid6`, `scrub` and `rebuild`: what they do to members, and what they say.

use crate::support::{Place, json, sentence};
use bifolio_volume::md::Raid6;
use bifolio_volume::{BlockDevice, FileDevice, Load, RoutedFile};
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

const CREATE: &str = "volume create raid6 m0 m1 m2 m3 m4 --size 2M --chunk 16K --name cli";

fn run_in(place: &Place, line: &str) -> Output {
    let args: Vec<_> = line.split_whitespace().collect();
    place.command(&args).current_dir(place.dir.path()).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn path(place: &Place, name: &str) -> PathBuf {
    place.dir.path().join(name)
}

fn open(place: &Place, names: &[&str]) -> Raid6 {
    let open = |name: &&str| Arc::new(RoutedFile::open(path(place, name), true).unwrap()) as Arc<dyn Load>;
    Raid6::assemble(names.iter().map(open).collect(), true).unwrap()
}

/// Changes a byte of the data of a member.
fn damage(place: &Place, name: &str, at: usize) {
    let mut bytes = std::fs::read(path(place, name)).unwrap();
    bytes[(1 << 20) + at] ^= 0x40;
    std::fs::write(path(place, name), bytes).unwrap();
}

#[test]
fn an_array_is_made_scrubbed_repaired_and_rebuilt() {
    let place = Place::new();
    let made = json(&run_in(&place, &format!("{CREATE} --json")));
    assert_eq!((made["members"].as_u64(), made["chunk_bytes"].as_u64()), (Some(5), Some(16384)));
    assert_eq!(made["bytes"].as_u64(), Some(3 << 20));
    let content: Vec<u8> = (0..3_u32 << 20).map(|i| (i / 7 % 251) as u8).collect();
    let array = open(&place, &["m0", "m1", "m2", "m3", "m4"]);
    array.write(0, &content).unwrap();
    array.close().unwrap();
    assert!(text(&run_in(&place, "volume scrub m4 m1 m0 m3 m2")).contains("64 stripes, 0 pieces wrong"));

    damage(&place, "m2", 50_000);
    let found = run_in(&place, "volume scrub m0 m1 m2 m3 m4 --json");
    assert_eq!(found.status.code(), Some(4));
    let answer: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!((answer["wrong"].as_u64(), answer["findings"][0]["member"].as_str()), (Some(1), Some("m2")));
    assert!(String::from_utf8_lossy(&found.stderr).contains("--repair"));
    assert!(text(&run_in(&place, "volume scrub m0 m1 m2 m3 m4 --repair")).contains("corrected"));
    assert!(text(&run_in(&place, "volume scrub m0 m1 m2 m3 m4")).contains("0 pieces wrong"));

    // A file that is not there is made; two are missing.
    for (onto, left, state) in [("new1", "m0 m2 m4", "degraded"), ("new3", "m0 m2 m4 new1", "healthy")] {
        let rebuilt = json(&run_in(&place, &format!("volume rebuild {left} --onto {onto} --json")));
        assert_eq!(rebuilt["state"].as_str(), Some(state), "{rebuilt}");
    }
    let array = open(&place, &["new1", "new3", "m4"]);
    let mut found = vec![0xa5; content.len()];
    array.read(0, &mut found).unwrap();
    assert!(found == content);
}

#[test]
fn refusals_are_sentences_and_leave_nothing_behind() {
    let place = Place::new();
    assert!(sentence(&run_in(&place, "volume create raid6 a b c --size 2M"), 2).contains("4 values required"));
    assert!(
        sentence(&run_in(&place, "volume create raid6 a b c d --size 2M --layout left"), 2).contains("left-symmetric")
    );
    assert!(sentence(&run_in(&place, "volume create raid6 a b c d --size 2M --chunk 5000"), 2).contains("power of 2"));
    assert!(sentence(&run_in(&place, "volume create raid6 a b c d --size 1M"), 2).contains("needed"));
    assert!(!path(&place, "a").exists(), "files that were made for nothing are removed");
    text(&run_in(&place, CREATE));
    assert!(sentence(&run_in(&place, CREATE), 5).contains("m0"));
    assert!(sentence(&run_in(&place, "volume create raid6 m0 m1 m2 m3 m4"), 5).contains("member of an md array"));
    assert!(sentence(&run_in(&place, "volume scrub m0 m1"), 7).contains("2 of its 5 members"));
    assert!(sentence(&run_in(&place, "volume scrub m0 m1 m2"), 1).contains("rebuild them first"));
    assert!(sentence(&run_in(&place, "volume rebuild m0 m1 m2 m3 m4 --onto x"), 1).contains("nothing to rebuild"));
    assert!(!path(&place, "x").exists());
    text(&run_in(&place, "volume create raid6 o0 o1 o2 o3 --size 2M"));
    assert!(sentence(&run_in(&place, "volume rebuild m0 m1 m2 m3 --onto o1"), 5).contains("o1"));
    assert!(sentence(&run_in(&place, "volume rebuild m0 m1 m2 o3 --onto x"), 7).contains("o3"));
}

/// Symptom: `volume create raid6 fs z1 z2 z3` over a file that holds ext4 or a LUKS volume succeeded without --force, and
/// so did `volume rebuild --onto fs`. Cause: members of arrays were all that was looked for.
#[test]
fn what_a_file_holds_is_not_overwritten_unasked() {
    let place = Place::new();
    let size = 4 << 20;
    let gpt = [&b"EFI PART"[..], &[0; 16], &(size as u64 / 512 - 1).to_le_bytes()].concat();
    // What mkfs.ext2 and luksFormat leave where they are recognised, and bytes that nobody knows.
    let contents: [(&str, usize, &[u8]); 5] = [
        ("ext2", 1080, &[0x53, 0xef]),
        ("luks", 0, b"LUKS\xba\xbe\0\x02"),
        ("mbr", 510, &[0x55, 0xaa]),
        ("gpt", size - 512, &gpt),
        ("data", 3 << 20, b"precious"),
    ];
    text(&run_in(&place, CREATE));
    let left: Vec<PathBuf> = (0..4).map(|number| path(&place, &format!("m{number}"))).collect();
    let members: Vec<Vec<u8>> = left.iter().map(|member| std::fs::read(member).unwrap()).collect();
    let (rebuild, create) = ("volume rebuild m0 m1 m2 m3 --onto fs", "volume create raid6 fs z1 z2 z3");
    for (name, at, bytes) in contents {
        let mut content = vec![0; size];
        content[at..at + bytes.len()].copy_from_slice(bytes);
        for file in ["z1", "z2", "z3"] {
            std::fs::write(path(&place, file), vec![0; size]).unwrap();
        }
        for line in [rebuild, create] {
            std::fs::write(path(&place, "fs"), &content).unwrap();
            let other = if name == "mbr" { "luks" } else { "mbr" };
            for force in [String::new(), format!(" --force={other},xfs")] {
                let refused = sentence(&run_in(&place, &format!("{line}{force}")), 5);
                assert!(
                    refused.starts_with("bifolio: fs: ") && refused.contains(&format!("--force={name} ")),
                    "{refused}"
                );
                assert!(std::fs::read(path(&place, "fs")).unwrap() == content, "{line}{force}");
            }
            text(&run_in(&place, &format!("{line} --force={name},xfs")));
            let found =
                bifolio_volume::signatures::look(&FileDevice::open(path(&place, "fs"), false).unwrap()).unwrap();
            assert_eq!(found.iter().map(|found| found.name).collect::<Vec<_>>(), ["md"], "{name}: {line}");
            // A member short again.
            left.iter().zip(&members).for_each(|(member, bytes)| std::fs::write(member, bytes).unwrap());
        }
    }
}

/// What a former member holds is its own array's, so that nothing has to be named.
#[test]
fn a_former_member_is_rebuilt_without_force() {
    let place = Place::new();
    text(&run_in(&place, CREATE));
    let array = open(&place, &["m0", "m1", "m2", "m3"]);
    array.write(0, &vec![7; 100_000]).unwrap();
    array.close().unwrap();
    assert!(text(&run_in(&place, "volume rebuild m0 m1 m2 m3 --onto m4")).contains("healthy"));
    assert!(text(&run_in(&place, "volume scrub m0 m1 m2 m3 m4")).contains(" 0 pieces wrong"));
    // Whose a damaged superblock is cannot be known.
    let mut bytes = std::fs::read(path(&place, "m4")).unwrap();
    bytes[4096 + 100] ^= 1;
    std::fs::write(path(&place, "m4"), &bytes).unwrap();
    assert!(sentence(&run_in(&place, "volume rebuild m0 m1 m2 m3 --onto m4"), 5).contains("--force=md "));
    assert!(text(&run_in(&place, "volume rebuild m0 m1 m2 m3 --onto m4 --force=md")).contains("healthy"));
}

#[test]
fn members_that_somebody_writes_to_are_left_alone() {
    let place = Place::new();
    json(&run_in(&place, &format!("{CREATE} --json")));
    let held = FileDevice::open(path(&place, "m3"), true).unwrap();
    held.claim().unwrap();
    let before = std::fs::read(path(&place, "m0")).unwrap();
    for line in [
        "volume scrub m0 m1 m2 m3 m4 --repair",
        "volume rebuild m0 m1 m2 m3 --onto new",
        "volume rebuild m0 m1 m2 m4 --onto m3",
        "volume create raid6 m0 m1 m2 m3 m4 --force=md",
    ] {
        let refused = run_in(&place, line);
        assert!(!refused.status.success(), "{line}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("another bifolio has it open for writing"), "{line}: {said}");
    }
    assert!(std::fs::read(path(&place, "m0")).unwrap() == before);
    // Looking is for everybody.
    assert!(text(&run_in(&place, "volume scrub m0 m1 m2 m3 m4")).contains("0 pieces wrong"));
    drop(held);
    assert!(run_in(&place, "volume scrub m0 m1 m2 m3 m4 --repair").status.success());
}

#[test]
fn an_array_with_members_missing_says_so_and_gives_what_it_has() {
    let place = Place::new();
    json(&run_in(&place, &format!("{CREATE} --json")));
    for line in ["volume cat m0 m2 m4 --length 100", "read --volume m0 m2 m4 --json"] {
        let output = run_in(&place, line);
        assert!(output.status.success(), "{line}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("no usable member 1 and 3"), "{line}: {said}");
    }
}
