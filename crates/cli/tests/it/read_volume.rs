//! `bifolio read` of volumes and of files of encrypted directories.

use crate::support::{Place, json, sentence, sha256};
use bifolio_crypt::{CipherDir, InitOptions, Key};
use bifolio_testing::{noise, seed};
use bifolio_volume::md::{Content, CreateOptions, Raid6, Rotation};
use bifolio_volume::{BlockDevice, Load, RoutedFile};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn draw(len: usize) -> Vec<u8> {
    noise(len, seed())
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_array_is_read_whole_and_in_parts_also_without_two_members() {
    let place = Place::new();
    let paths: Vec<PathBuf> = (0..5).map(|number| place.dir.path().join(format!("m{number}"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(3 << 20).unwrap();
    }
    let devices = paths.iter().map(|path| Arc::new(RoutedFile::open(path, true).unwrap()) as Arc<dyn Load>);
    let options = CreateOptions { content: Content::Zeroes, ..CreateOptions::default() };
    let array = Raid6::create(devices.collect(), 64 << 10, Rotation::LeftSymmetric, &options).unwrap();
    let content = draw(array.geometry().size as usize);
    array.write(0, &content).unwrap();
    array.close().unwrap();
    let names: Vec<String> = paths.iter().map(|path| text(path)).collect();
    for members in [&names[..], &names[2..]] {
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let read = |options: &[&str]| {
            let head = ["read", "--device", "host", "--json", "--sha256", "--verify"];
            place.run(&[&head[..], options, &["--volume"], &members].concat())
        };
        let answer = json(&read(&["--repeat", "2"]));
        assert_eq!(answer["bytes"], content.len());
        assert_eq!(answer["sha256"], sha256(&content));
        assert_eq!(answer["verified"], true);
        assert_eq!(answer["runs"].as_array().unwrap().len(), 2);
        let answer = json(&read(&["--offset", "1000", "--length", "777777"]));
        assert_eq!(answer["sha256"], sha256(&content[1000..778_777]));
        let mut refused = read(&["--offset", "1G"]);
        if members.len() < names.len() {
            // It says that as well.
            let said = String::from_utf8(refused.stderr).unwrap();
            let (warning, rest) = said.split_once('\n').unwrap();
            assert!(warning.contains("no usable member 0 and 1"), "{warning}");
            refused.stderr = rest.as_bytes().to_vec();
        }
        assert!(sentence(&refused, 1).contains("offset 1073741824"));
    }
    let one = ["read", "--device", "host", "--volume", &names[0]];
    assert!(sentence(&place.run(&one), 7).contains("needs at least 3"));
    assert!(sentence(&place.run(&["read", "--device", "host"]), 2).contains("FILE"));
}

#[test]
fn a_file_of_an_encrypted_directory_is_read_by_its_plain_path() {
    let place = Place::new();
    let (vault, key) = (place.dir.path().join("vault"), place.dir.path().join("key"));
    std::fs::create_dir(&vault).unwrap();
    std::fs::write(&key, "open sesame\nnot this line\n").unwrap();
    let options = InitOptions { scrypt_log_n: 10, ..InitOptions::default() };
    let master = CipherDir::init(&vault, b"open sesame", options).unwrap();
    let dir = CipherDir::open(&vault, &Key::Master(master)).unwrap();
    let content = draw(300_001);
    dir.create_file(Path::new("weights")).unwrap().write_at(&content, 0).unwrap();
    let (file, key) = (text(&vault.join("weights")), text(&key));
    let read = |file: &str, key: &str| {
        place.run(&["read", "--device", "host", "--json", "--sha256", "--verify", file, "--key-file", key])
    };
    assert_eq!(json(&read(&file, &key))["sha256"], sha256(&content));
    let stored = dir.lookup(Path::new("weights")).unwrap();
    assert!(sentence(&read(&file, &text(&stored)), 6).contains("passphrase"), "another key");
    let mut bytes = std::fs::read(&stored).unwrap();
    bytes[18 + 3 * 4128 + 100] ^= 1;
    std::fs::write(&stored, bytes).unwrap();
    assert!(sentence(&read(&file, &key), 7).contains("block 3 "));
    assert!(sentence(&read(&text(&place.dir.path().join("key")), &key), 7).contains("gocryptfs.conf"));
}
