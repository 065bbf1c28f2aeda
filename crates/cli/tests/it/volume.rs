//! The command on volumes: what it makes, prints and exports, with the programs that others use.

use crate::support::{json, sentence, signal};
use bifolio_testing::{noise, seed, until};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const MIB: usize = 1 << 20;
const SECRET: &str = "correct horse battery";

/// Whether programs are there.
#[track_caller]
fn has(programs: &[&str]) -> bool {
    programs.iter().all(|program| bifolio_testing::has(program))
}

/// Content without a pattern, other in every run.
fn draw(len: usize) -> Vec<u8> {
    noise(len, seed())
}

/// A folder with a key file.
struct Volumes {
    place: crate::support::Place,
    key: String,
}

impl Volumes {
    fn new() -> Self {
        let place = crate::support::Place::new();
        let key = place.dir.path().join("key");
        std::fs::write(&key, SECRET).unwrap();
        Self { key: text(&key), place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        text(&self.path(name))
    }

    /// A volume with cheap keyslots, and room for `bytes`.
    fn create(&self, name: &str, bytes: usize) -> Output {
        let size = (bytes.next_multiple_of(4096) + (16 << 20)).to_string();
        let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"];
        let image = self.text(name);
        let args = ["volume", "create", "luks2", &image, "--size", &size, "--key-file", &self.key];
        self.place.run(&[&args[..], &cheap].concat())
    }

    /// A volume with content, written through the library.
    fn filled(&self, name: &str, content: &[u8]) -> PathBuf {
        assert!(self.create(name, content.len()).status.success());
        let file = bifolio_volume::FileDevice::open(self.path(name), true).unwrap();
        let luks =
            bifolio_volume::Luks::open(std::sync::Arc::new(bifolio_volume::RoutedFile::new(file)), SECRET.as_bytes())
                .unwrap();
        bifolio_volume::BlockDevice::write(&luks, 0, content).unwrap();
        self.path(name)
    }

    fn cat(&self, image: &Path, options: &[&str]) -> Output {
        self.place.run(&[&["volume", "cat", &text(image), "--key-file", &self.key], options].concat())
    }

    fn content(&self, image: &Path) -> Vec<u8> {
        let output = self.cat(image, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// The command, with the plugin that was built for this test: where cargo puts what it builds for all, there may
    /// be an older one.
    fn command(&self, args: &[&str]) -> Command {
        let folder = Path::new(env!("CARGO_BIN_EXE_bifolio")).parent().unwrap();
        let mut command = self.place.command(args);
        command.env("BIFOLIO_NBDKIT_PLUGIN", folder.join("deps/libbifolio_nbdkit.so"));
        command
    }

    /// Starts an export, and waits until it says where.
    fn export(&self, image: &Path, options: &[&str]) -> Export {
        self.export_of(&[&text(image), "--key-file", &self.key], options)
    }

    fn export_of(&self, images: &[&str], options: &[&str]) -> Export {
        let args = [&["volume", "export"], images, options].concat();
        let mut child = self.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ended = line.is_empty().then(|| child.wait());
        assert!(ended.is_none(), "{ended:?}: {:?}", child.stderr.take().map(std::io::read_to_string));
        Export { child: Some(child), place: line.trim_end().to_owned() }
    }
}

struct Export {
    /// Until it is waited for.
    child: Option<Child>,
    /// A URI, or a path.
    place: String,
}

/// A test that failed leaves nothing running.
impl Drop for Export {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Export {
    fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// nbdkit, which the command has started.
    fn server(&self) -> u32 {
        let id = self.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    fn wait(mut self) -> Output {
        let child = self.child.take().unwrap();
        child.wait_with_output().unwrap()
    }

    /// Interrupts it; it has to end well.
    #[track_caller]
    fn end(self) {
        self.signal("TERM");
        let output = self.wait();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn run(program: &str, args: &[&str]) -> Output {
    let output = bifolio_testing::command(program).args(args).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {out}{err}");
    output
}

#[test]
fn a_volume_is_made_described_and_not_overwritten_unasked() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let made = volumes.create("disk.img", 4 * MIB);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let image = volumes.text("disk.img");
    let info = json(&volumes.place.run(&["volume", "info", "--json", &image]));
    assert_eq!(info["layers"][0]["layer"], "file");
    let luks = &info["layers"][1];
    assert_eq!((&luks["layer"], &luks["version"], &luks["sector_bytes"]), (&"luks".into(), &2.into(), &4096.into()));
    assert_eq!((&luks["payload_bytes"], &luks["key_bits"]), (&(4 * MIB).into(), &512.into()));
    assert_eq!(luks["keyslots"][0]["memory_kib"], 32);
    let output = volumes.place.run(&["volume", "info", &image]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("aes-xts-plain64") && printed.contains("argon2id"), "{printed}");

    let again = ["volume", "create", "luks2", &image, "--key-file", &volumes.key];
    let refused = sentence(&volumes.place.run(&again), 5);
    assert!(refused.contains("a LUKS volume (at byte 0)") && refused.contains("--force=luks"), "{refused}");
    std::fs::write(volumes.path("used.img"), vec![1; 20 * MIB]).unwrap();
    let used = ["volume", "create", "luks2", &volumes.text("used.img"), "--key-file", &volumes.key];
    assert!(sentence(&volumes.place.run(&used), 5).contains("--force=data"));
    // What may be lost has to be named, and by the name of what is there.
    assert!(sentence(&volumes.place.run(&[&used[..], &["--force=ext4"]].concat()), 5).contains("--force=data"));
    assert!(sentence(&volumes.place.run(&[&used[..], &["--force"]].concat()), 2).contains("--force=<NAME,...>"));
    assert!(sentence(&volumes.place.run(&[&used[..], &["--force=ext5"]].concat()), 2).contains("ext4"));
    assert!(std::fs::read(volumes.path("used.img")).unwrap() == vec![1; 20 * MIB]);
    let force = ["--force=data", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
    assert!(volumes.place.run(&[&used[..], &force].concat()).status.success());

    let none = ["volume", "create", "luks2", &volumes.text("none.img"), "--key-file", &volumes.key];
    assert!(sentence(&volumes.place.run(&none), 2).contains("--size"));
    assert!(sentence(&volumes.create("small.img", 0), 1).contains("header"));
    assert!(!volumes.path("small.img").exists(), "nothing is left behind");
}

#[test]
fn content_comes_out_whole_and_in_parts() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let content = draw(9 * MIB);
    let image = volumes.filled("disk.img", &content);
    assert!(volumes.content(&image) == content);
    for (offset, length) in [(0, 0), (1, 1), (4097, 5 * MIB + 3), (9 * MIB - 1, 100), (9 * MIB, 5)] {
        let output = volumes.cat(&image, &["--offset", &offset.to_string(), "--length", &length.to_string()]);
        assert!(output.stdout == content[offset..(offset + length).min(content.len())], "{length} at {offset}");
    }
    assert!(sentence(&volumes.cat(&image, &["--offset", "1G"]), 1).contains("offset 1073741824"));

    let command = ["volume", "cat", &text(&image), "--key-file", &volumes.key];
    let mut piped = volumes.place.command(&command);
    let mut child = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "a reader that has seen enough is no error");

    std::fs::write(volumes.path("wrong"), "wrong").unwrap();
    let wrong = ["volume", "cat", &text(&image), "--key-file", &volumes.text("wrong")];
    let refused = sentence(&volumes.place.run(&wrong), 6);
    assert!(refused.contains("no keyslot"), "{refused}");
    // Plain files have content too, and need no key.
    std::fs::write(volumes.path("plain"), "plain").unwrap();
    assert_eq!(volumes.place.run(&["volume", "cat", &volumes.text("plain")]).stdout, b"plain");
    let two = ["volume", "info", &text(&image), &volumes.text("plain")];
    assert!(sentence(&volumes.place.run(&two), 7).contains("member of an array"));
}

/// Symptom: labels were printed as they are, so that a header could send escape sequences to the terminal.
#[test]
fn a_label_reaches_no_terminal() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let (image, label) = (volumes.text("disk.img"), "a\u{1b}[2J\u{9b}m\u{202e}b\nfake: line");
    let args = ["volume", "create", "luks2", &image, "--size", "20M", "--key-file", &volumes.key, "--label", label];
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
    assert!(volumes.place.run(&[&args[..], &cheap].concat()).status.success());
    let shown = "a\\u{1b}[2J\\u{9b}m\\u{202e}b\\nfake: line";
    let is_hidden = |character: char| character != '\n' && bifolio_block::is_unprintable(character);
    let is_plain = |bytes: &[u8]| !String::from_utf8_lossy(bytes).contains(is_hidden);
    let info = volumes.place.run(&["volume", "info", &image]);
    assert!(is_plain(&info.stdout) && String::from_utf8_lossy(&info.stdout).contains(shown), "{info:?}");
    let as_json = volumes.place.run(&["volume", "info", "--json", &image]);
    assert!(is_plain(&as_json.stdout), "{as_json:?}");
    assert_eq!(json(&as_json)["layers"][1]["label"], label);
    let refused = sentence(&volumes.place.run(&args), 5);
    assert!(is_plain(refused.as_bytes()) && refused.contains(shown), "{refused}");
    // And names of files, which are as much somebody else's.
    let named = volumes.path("disk\u{1b}[31m");
    std::fs::rename(&image, &named).unwrap();
    let info = volumes.place.run(&["volume", "info", &text(&named)]);
    assert!(info.status.success() && is_plain(&info.stdout), "{info:?}");
    let wrong = sentence(&volumes.cat(&named, &["--offset", "1G"]), 1);
    assert!(is_plain(wrong.as_bytes()) && wrong.contains("disk\\u{1b}[31m: "), "{wrong}");
}

/// Symptom: an image that was cut within its first sector was read as 0 bytes, with success.
#[test]
fn an_image_cut_within_its_first_sector_is_an_error() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", &draw(8192));
    File::options().write(true).open(&image).unwrap().set_len((16 << 20) + 100).unwrap();
    let output = volumes.cat(&image, &[]);
    assert!(sentence(&output, 7).contains("truncated within the first sector"));
    // And within the first bytes of the header.
    std::fs::write(&image, b"LUKS\xba").unwrap();
    assert!(sentence(&volumes.place.run(&["volume", "cat", &text(&image)]), 7).contains("truncated to 5 bytes"));
}

/// Symptom: one SIGINT or SIGTERM did not end a command that was trying a keyslot, which can take minutes. Cause: the
/// derivation runs in a library that looks at nothing else.
#[test]
fn the_first_signal_ends_a_key_derivation() {
    if !has(&["cryptsetup", "nbdkit"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = text(&volumes.filled("disk.img", &draw(8192)));
    // Ten minutes of work, which the guard on costs just lets through.
    let mut bytes = std::fs::read(&image).unwrap();
    for copy in [0, 0x4000] {
        let header = &mut bytes[copy..copy + 0x4000];
        let json = String::from_utf8(header[0x1000..].to_vec()).unwrap();
        let slow = json.trim_end_matches('\0').replacen("\"time\":4", "\"time\":19000000", 1).into_bytes();
        header[0x1000..].fill(0);
        header[0x1000..0x1000 + slow.len()].copy_from_slice(&slow);
        header[448..512].fill(0);
        let digest = <sha2::Sha256 as sha2::Digest>::digest(&*header);
        header[448..480].copy_from_slice(&digest);
    }
    std::fs::write(&image, &bytes).unwrap();
    let new = volumes.text("new.img");
    let slow = ["--size", "20M", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4294967295"];
    let create = [&["volume", "create", "luks2", &new, "--key-file", &volumes.key], &slow[..]].concat();
    let anew = [&["volume", "create", "luks2", &image, "--key-file", &volumes.key, "--force=luks,cut"], &slow[2..]];
    let anew = [&anew.concat()[..], &["--size", "16781312"]].concat();
    let nbd = format!("unix:{}", volumes.text("socket"));
    let key = ["--key-file", &volumes.key];
    for (args, name) in [
        ([&["volume", "cat", &image], &key[..]].concat(), "INT"),
        ([&["read", "--volume", &image], &key[..]].concat(), "TERM"),
        (create, "TERM"),
        (anew, "INT"),
        ([&["volume", "export", &image, "--nbd", &nbd], &key[..]].concat(), "TERM"),
    ] {
        let mut child = volumes.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("a key is derived", || is_deriving(child.id()));
        signal(child.id(), name);
        let ended = std::cell::RefCell::new(&mut child);
        until("the first signal ends it", || ended.borrow_mut().try_wait().unwrap().is_some());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{args:?}: {said}");
        assert!(output.stdout.is_empty() && said.contains("interrupted"), "{args:?}: {said}");
    }
    assert!(!Path::new(&new).exists(), "nothing of use was in it");
    assert!(std::fs::read(&image).unwrap() == bytes, "nothing was written, or cut, before there was a key");
}

/// Whether a process, or nbdkit below it, has the library that computes keys, which it loads to do so at once.
fn is_deriving(id: u32) -> bool {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let children = read(format!("/proc/{id}/task/{id}/children"));
    let all = children.split_whitespace().map(str::to_owned).chain([id.to_string()]);
    all.into_iter().any(|id| read(format!("/proc/{id}/maps")).contains("libcryptsetup"))
}

/// One meaning for each code, whatever command finds it.
#[test]
fn every_exit_code_means_one_thing_in_all_commands() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = text(&volumes.filled("disk.img", &draw(8192)));
    let members: Vec<String> = (0..4).map(|number| volumes.text(&format!("m{number}"))).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let make = [&["volume", "create", "raid6"], &members[..], &["--size", "2M"]].concat();
    assert!(volumes.place.run(&make).status.success());
    std::fs::write(volumes.path("wrong"), "wrong").unwrap();
    std::fs::write(volumes.path("damaged"), b"LUKS\xba\xbe\0\x02").unwrap();
    let (wrong, damaged, key) = (volumes.text("wrong"), volumes.text("damaged"), volumes.key.clone());
    let (plain, none, vault, folder) =
        (volumes.text("key"), volumes.text("none"), volumes.text("vault"), volumes.text(""));
    std::fs::create_dir(&vault).unwrap();
    let init = ["crypt", "init", &vault, "--passfile", &key, "--scryptn", "10"];
    assert!(volumes.place.run(&init).status.success());
    for (args, code) in [
        // The operation failed.
        (vec!["volume", "info", &none], 1),
        (vec!["volume", "cat", &image, "--key-file", &none], 1),
        (vec!["volume", "cat", &image, "--key-file", &key, "--offset", "1G"], 1),
        // The command line is wrong.
        (vec!["volume", "create", "luks2", &none, "--key-file", &key], 2),
        (vec!["volume", "create", "raid6", "a", "b", "c", "d", "--size", "2M", "--chunk", "5000"], 2),
        (vec!["stripe", "create", &none, "a", "a", "--size", "1M"], 2),
        // Not available.
        (vec!["volume", "export", &image, "--key-file", &key, "--ublk"], 3),
        (vec!["read", &plain, "--device", "cuda:99"], 3),
        // Refused, as something would be lost.
        (vec!["volume", "create", "luks2", &image, "--key-file", &key], 5),
        ([&["volume", "create", "raid6"], &members[..]].concat(), 5),
        ([&["volume", "rebuild"], &members[..3], &["--onto", &image]].concat(), 5),
        (vec!["stripe", "create", &plain, members[0], "--size", "1M"], 5),
        (vec!["crypt", "init", &vault, "--passfile", &key], 5),
        // The wrong key.
        (vec!["volume", "cat", &image, "--key-file", &wrong], 6),
        (vec!["read", "--volume", &image, "--key-file", &wrong], 6),
        (vec!["crypt", "info", &vault, "--masterkey", "--passfile", &wrong], 6),
        // Damaged, incomplete, or something else.
        (vec!["volume", "info", &damaged], 7),
        (vec!["volume", "cat", &plain, "--key-file", &key], 7),
        (vec!["volume", "scrub", members[0]], 7),
        (vec!["volume", "info", &vault], 7),
        (vec!["read", &vault], 7),
        (vec!["crypt", "info", &folder], 7),
    ] {
        sentence(&volumes.place.run(&args), code);
    }
    let held = bifolio_volume::FileDevice::open(members[3], true).unwrap();
    held.claim().unwrap();
    sentence(&volumes.place.run(&[&["volume", "scrub", "--repair"], &members[..]].concat()), 1);
    drop(held);
    // Two chunks of one stripe are wrong: which they are cannot be told, and the rest is done.
    for (member, byte) in [(0, 9), (1, 77)] {
        let file = File::options().write(true).open(members[member]).unwrap();
        file.write_all_at(&[byte; 100], (1 << 20) + 4096).unwrap();
    }
    let scrub = |options: &[&str]| volumes.place.run(&[&["volume", "scrub"], &members[..], options].concat());
    assert_eq!(scrub(&[]).status.code(), Some(4), "wrong bytes");
    assert_eq!(scrub(&["--repair"]).status.code(), Some(8), "done in part");
    let help = volumes.place.run(&["--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 ", "8 ", "130 "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code}: {help}");
    }
}

#[test]
fn a_passphrase_can_come_through_standard_input() {
    if !has(&["cryptsetup"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", b"content");
    let mut command = volumes.place.command(&["volume", "cat", &text(&image), "--length", "7"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Without --key-file it is a line, as typed; with `--key-file -` all bytes would count.
    child.stdin.take().unwrap().write_all(format!("{SECRET}\n").as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"content");
}

/// Symptom: an image whose header was lost was taken for a plain file, and an export wrote plaintext to it.
#[test]
fn a_key_for_what_is_not_encrypted_is_a_refusal() {
    if !has(&["cryptsetup", "nbdkit"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", &draw(MIB));
    let disk = File::options().write(true).open(&image).unwrap();
    disk.write_all_at(&vec![0; 16 * MIB], 0).unwrap();
    let before = std::fs::read(&image).unwrap();
    let (image, socket) = (text(&image), format!("unix:{}", volumes.text("socket")));
    let key = ["--key-file", &volumes.key];
    for args in [
        &[&["volume", "cat", &image], &key[..]].concat()[..],
        &[&["read", "--volume", &image], &key[..]].concat(),
        &[&["volume", "export", &image, "--nbd", &socket], &key[..]].concat(),
        &[&["volume", "export", &image, "--mount", &volumes.text("")], &key[..]].concat(),
    ] {
        let output = volumes.command(args).output().unwrap();
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(sentence(&output, 7).contains("no LUKS header"), "{args:?}");
    }
    assert!(std::fs::read(&image).unwrap() == before);
    // Cut to less than the smallest header.
    std::fs::write(&image, b"LUKS\xba\xbe\0\x02").unwrap();
    assert!(sentence(&volumes.place.run(&["volume", "cat", &image]), 7).contains("truncated to 8 bytes"));
}

#[test]
fn an_image_is_made_only_where_nothing_is_lost() {
    let volumes = Volumes::new();
    let image = volumes.path("disk.img");
    let mut content = vec![0; 40 * MIB];
    content[30 * MIB] = 7;
    std::fs::write(&image, &content).unwrap();
    let create = |size: &str, key: &str, force: &[&str]| {
        let args =
            ["volume", "create", "luks2", &text(&image), "--size", size, "--key-file", key, "--pbkdf-memory", "32"];
        volumes.place.run(&[&args[..], force].concat())
    };
    assert!(sentence(&create("20M", &volumes.key, &[]), 5).contains("bytes beyond the new end (at byte 20971520)"));
    assert!(!create("20M", &volumes.text("no key"), &["--force=cut"]).status.success());
    std::fs::write(volumes.path("empty"), "").unwrap();
    assert!(sentence(&create("20M", &volumes.text("empty"), &["--force=cut"]), 2).contains("no bytes"));
    let held = bifolio_volume::FileDevice::open(&image, true).unwrap();
    held.claim().unwrap();
    assert!(sentence(&create("20M", &volumes.key, &["--force=cut"]), 1).contains("another bifolio"));
    assert!(std::fs::read(&image).unwrap() == content);
    drop(held);
    if has(&["cryptsetup"]) {
        assert!(create("20M", &volumes.key, &["--force=cut"]).status.success());
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 20 << 20);
    }
    // A pipe is refused, and not waited for.
    assert!(Command::new("mkfifo").arg(volumes.path("pipe")).status().unwrap().success());
    assert!(sentence(&volumes.place.run(&["volume", "info", &volumes.text("pipe")]), 7).contains("neither a file"));
}

#[test]
fn nbd_clients_read_and_write_an_export() {
    if !has(&["cryptsetup", "nbdkit", "nbdcopy", "qemu-io"]) {
        return;
    }
    let volumes = Volumes::new();
    let mut content = draw(8 * MIB);
    let image = volumes.filled("disk.img", &content);
    let socket = volumes.path("socket");
    let export = volumes.export(&image, &["--nbd", &format!("unix:{}", text(&socket))]);
    let uri = export.place.clone();
    for place in ["cmdline", "environ"] {
        let of_server = std::fs::read(format!("/proc/{}/{place}", export.server())).unwrap();
        let secret = SECRET.as_bytes();
        assert!(!of_server.windows(secret.len()).any(|part| part == secret), "the key is in its {place}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o022, 0, "nobody but its owner may connect, for which Linux asks for the right to write");
    let other = format!("unix:{}", text(&socket));
    let second = ["volume", "export", &text(&image), "--key-file", &volumes.key, "--nbd", &other];
    assert!(sentence(&volumes.command(&second).output().unwrap(), 1).contains("serves on this socket"));

    run("nbdcopy", &[&uri, &volumes.text("copy")]);
    assert!(std::fs::read(volumes.path("copy")).unwrap() == content);
    content = draw(8 * MIB);
    std::fs::write(volumes.path("new"), &content).unwrap();
    run("nbdcopy", &["--flush", &volumes.text("new"), &uri]);
    let script =
        ["-c", "write -P 7 1000 5000", "-c", "flush", "-c", "read -P 7 1000 5000", "-c", "write -f -P 9 8K 4K"];
    let printed = run("qemu-io", &[&["-f", "raw"], &script[..], &[&uri]].concat());
    assert!(!String::from_utf8_lossy(&printed.stdout).contains("failed"), "{printed:?}");
    content[1000..6000].fill(7);
    content[8192..12288].fill(9);
    export.end();
    assert!(!socket.exists());
    assert!(volumes.content(&image) == content);
}

#[test]
fn an_array_that_was_exported_is_clean_when_the_server_has_ended() {
    if !has(&["nbdkit", "nbdcopy", "mdadm"]) {
        return;
    }
    let volumes = Volumes::new();
    let members: Vec<String> = (0..5).map(|number| volumes.text(&format!("m{number}"))).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let create = [&["volume", "create", "raid6"], &members[..], &["--size", "3M", "--chunk", "16K"]].concat();
    assert!(volumes.place.run(&create).status.success());
    let state_of = |member: &str| {
        let said = run("mdadm", &["--examine", member]).stdout;
        let said = String::from_utf8(said).unwrap();
        said.lines().find_map(|line| line.trim().strip_prefix("State : ").map(str::to_owned)).unwrap()
    };
    let export = volumes.export_of(&members, &["--nbd", &format!("unix:{}", volumes.text("socket"))]);
    let content = draw(4 * MIB);
    std::fs::write(volumes.path("new"), &content).unwrap();
    run("nbdcopy", &["--flush", &volumes.text("new"), &export.place]);
    assert!(members.iter().all(|member| state_of(member) == "active"), "it is written to");
    export.end();
    assert!(members.iter().all(|member| state_of(member) == "clean"));
    let scrub = volumes.place.run(&[&["volume", "scrub"], &members[..]].concat());
    assert!(scrub.status.success() && String::from_utf8_lossy(&scrub.stdout).contains(" 0 pieces wrong"), "{scrub:?}");
    let cat = volumes.place.run(&[&["volume", "cat"], &members[1..4]].concat());
    assert!(cat.stdout[..content.len()] == content, "any three members have all of it");
}

#[test]
fn a_degraded_array_is_exported_again_after_its_server_was_killed() {
    if !has(&["nbdkit", "nbdcopy"]) {
        return;
    }
    let volumes = Volumes::new();
    let members: Vec<String> = (0..5).map(|number| volumes.text(&format!("m{number}"))).collect();
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let create = [&["volume", "create", "raid6"], &members[..], &["--size", "3M", "--chunk", "16K"]].concat();
    assert!(volumes.place.run(&create).status.success());
    let (left, socket) = (&members[..4], format!("unix:{}", volumes.text("socket")));
    let export = volumes.export_of(left, &["--nbd", &socket]);
    let content = draw(4 * MIB);
    std::fs::write(volumes.path("new"), &content).unwrap();
    run("nbdcopy", &["--flush", &volumes.text("new"), &export.place]);
    let server = export.server();
    signal(server, "KILL");
    let _ = export.wait();
    // Symptom: it could not be looked at until it was opened for writing. Its log is carried out in memory.
    let before: Vec<_> = left.iter().map(|member| std::fs::read(member).unwrap()).collect();
    let cat = volumes.place.run(&[&["volume", "cat"], left].concat());
    assert!(cat.status.success() && cat.stdout[..content.len()] == content, "{}", String::from_utf8_lossy(&cat.stderr));
    assert!(String::from_utf8_lossy(&cat.stderr).contains("of its log were replayed, in memory"), "{:?}", cat.stderr);
    let info = json(&volumes.place.run(&[&["volume", "info", "--json"], left].concat()));
    let array = &info["layers"][left.len()];
    assert!(array["replay"]["in_memory"] == true && array["replay"]["writes"].as_u64() > Some(0), "{array}");
    let scrub = sentence(&volumes.place.run(&[&["volume", "scrub"], left].concat()), 1);
    assert!(scrub.contains("rebuild them first"), "as of any array without a member: {scrub}");
    assert!(left.iter().zip(&before).all(|(member, before)| std::fs::read(member).unwrap() == *before));
    // A log that is being written cannot be carried out.
    let held = bifolio_volume::FileDevice::open(left[1], true).unwrap();
    held.claim().unwrap();
    let refused = sentence(&volumes.place.run(&[&["volume", "cat"], left].concat()), 1);
    assert!(refused.contains("another bifolio has its array open for writing"), "{refused}");
    drop(held);
    // What was carried out for good is said.
    let copies: Vec<String> = (0..4).map(|number| volumes.text(&format!("copy{number}"))).collect();
    left.iter().zip(&copies).for_each(|(member, copy)| _ = std::fs::copy(member, copy).unwrap());
    let copies: Vec<&str> = copies.iter().map(String::as_str).collect();
    let onto = volumes.text("new-member");
    let rebuilt = [&["volume", "rebuild", "--json"], &copies[..], &["--onto", &onto]].concat();
    let rebuilt = json(&volumes.place.run(&rebuilt));
    assert!(rebuilt["replay"]["in_memory"] == false && rebuilt["replay"]["writes"].as_u64() > Some(0), "{rebuilt}");
    left.iter().zip(&copies).for_each(|(member, copy)| _ = std::fs::copy(member, copy).unwrap());
    let repair = volumes.place.run(&[&["volume", "scrub", "--repair"], &copies[..]].concat());
    let said = String::from_utf8(repair.stderr).unwrap();
    let is_said = said.contains("of its log were replayed") && !said.contains("in memory");
    assert!(is_said && said.contains("rebuild them first"), "{said}");
    let export = volumes.export_of(left, &["--nbd", &socket]);
    run("nbdcopy", &[&export.place, &volumes.text("copy")]);
    export.end();
    assert!(std::fs::read(volumes.path("copy")).unwrap()[..content.len()] == content);
    let cat = volumes.place.run(&[&["volume", "cat"], left].concat());
    assert!(cat.status.success() && cat.stdout[..content.len()] == content);
}

#[test]
fn fio_verifies_what_it_writes_to_an_export() {
    if !has(&["cryptsetup", "nbdkit", "fio"]) {
        return;
    }
    let engines = run("fio", &["--enghelp"]);
    if !String::from_utf8_lossy(&engines.stdout).contains("nbd") {
        return bifolio_testing::skip("this fio has no engine for NBD");
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", &draw(16 * MIB));
    let export = volumes.export(&image, &["--nbd", &format!("unix:{}", volumes.text("socket"))]);
    let job = ["--name=verify", "--ioengine=nbd", "--rw=randrw", "--bsrange=512-128k", "--bs_unaligned", "--iodepth=8"];
    let check = [
        "--verify=crc32c",
        "--size=16M",
        "--randrepeat=0",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ];
    run("fio", &[&job[..], &check, &[&format!("--uri={}", export.place)]].concat());
    export.end();
}

#[test]
fn what_was_flushed_survives_a_killed_server() {
    if !has(&["cryptsetup", "nbdkit", "nbdcopy", "qemu-io"]) {
        return;
    }
    let volumes = Volumes::new();
    let half = 8 * MIB;
    let image = volumes.filled("disk.img", &vec![0; 2 * half]);
    let export = volumes.export(&image, &["--nbd", &format!("unix:{}", volumes.text("socket"))]);
    let kept = draw(half);
    std::fs::write(volumes.path("kept"), &kept).unwrap();
    run("nbdcopy", &["--flush", &volumes.text("kept"), &export.place]);
    // Writes to the other half, without end.
    let half_of_image = || {
        let mut bytes = [0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut bytes, (16 * MIB + half) as u64).unwrap();
        bytes
    };
    let before = half_of_image();
    let writes = "write -q -P 5 8M 4M\n".repeat(10_000);
    let mut writer = Command::new("qemu-io");
    writer.args(["-f", "raw", &export.place]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut writer = writer.spawn().unwrap();
    let mut input = writer.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let _ = input.write_all(writes.as_bytes());
    });
    let server = export.server();
    until("the writes arrive", || half_of_image() != before);
    signal(server, "KILL");
    let output = export.wait();
    assert_eq!(output.status.code(), Some(1), "the command says that its server has gone");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nbdkit has ended"), "{output:?}");
    let _ = writer.kill();
    let _ = writer.wait();
    feeder.join().unwrap();
    assert!(volumes.content(&image)[..half] == kept);
    // The socket that was left behind is no obstacle.
    volumes.export(&image, &["--nbd", &format!("unix:{}", volumes.text("socket"))]).end();
}

#[test]
fn a_killed_command_takes_its_server_along() {
    if !has(&["cryptsetup", "nbdkit"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", &draw(MIB));
    let export = volumes.export(&image, &["--nbd", &format!("unix:{}", volumes.text("socket"))]);
    let server = export.server();
    export.signal("KILL");
    let _ = export.wait();
    let is_gone = || match std::fs::read_to_string(format!("/proc/{server}/stat")) {
        // Where nobody waits for orphans they stay as zombies.
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
        Err(_) => true,
    };
    until("nbdkit ends", is_gone);
}

#[test]
fn an_image_has_one_writer_at_a_time() {
    if !has(&["cryptsetup", "nbdkit"]) {
        return;
    }
    let volumes = Volumes::new();
    let content = draw(MIB);
    let image = volumes.filled("disk.img", &content);
    let socket = |name| format!("unix:{}", volumes.text(name));
    let first = volumes.export(&image, &["--nbd", &socket("first")]);
    let second = ["volume", "export", &text(&image), "--key-file", &volumes.key, "--nbd", &socket("second")];
    assert!(sentence(&volumes.command(&second).output().unwrap(), 1).contains("open for writing"));
    let anew = ["volume", "create", "luks2", &text(&image), "--key-file", &volumes.key, "--force=luks"];
    assert!(sentence(&volumes.command(&anew).output().unwrap(), 1).contains("open for writing"));
    assert!(volumes.content(&image) == content, "readers are not in the way");
    volumes.export(&image, &["--read-only", "--nbd", &socket("second")]).end();
    first.end();
    volumes.export(&image, &["--nbd", &socket("second")]).end();
}

#[test]
fn an_export_for_reading_refuses_writes() {
    if !has(&["cryptsetup", "nbdkit", "nbdcopy"]) {
        return;
    }
    let volumes = Volumes::new();
    let content = draw(MIB);
    let image = volumes.filled("disk.img", &content);
    let before = std::fs::read(&image).unwrap();
    let socket = format!("unix:{}", volumes.text("socket"));
    let export = volumes.export(&image, &["--read-only", "--nbd", &socket]);
    std::fs::write(volumes.path("new"), draw(MIB)).unwrap();
    let refused = Command::new("nbdcopy").args([&volumes.text("new"), &export.place]).output().unwrap();
    assert!(!refused.status.success());
    run("nbdcopy", &[&export.place, &volumes.text("copy")]);
    assert!(std::fs::read(volumes.path("copy")).unwrap() == content);
    export.end();
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn exports_that_cannot_begin_say_why() {
    if !has(&["cryptsetup", "nbdkit"]) {
        return;
    }
    let volumes = Volumes::new();
    let image = text(&volumes.filled("disk.img", b"content"));
    let nbd = format!("unix:{}", volumes.text("socket"));
    let base = ["volume", "export", &image, "--key-file", &volumes.key];
    let export = |options: &[&str]| volumes.command(&[&base[..], options].concat());

    std::fs::write(volumes.path("wrong"), "wrong").unwrap();
    let wrong = ["volume", "export", &image, "--key-file", &volumes.text("wrong"), "--nbd", &nbd];
    // As where it is opened without nbdkit.
    let refused = sentence(&volumes.command(&wrong).output().unwrap(), 6);
    assert!(refused.contains("no keyslot") && refused.contains("disk.img"), "{refused}");
    let no_program = sentence(&export(&["--nbd", &nbd]).env("PATH", "").output().unwrap(), 3);
    assert!(no_program.contains("nbdkit: it is not installed"), "{no_program}");
    let no_plugin = export(&["--nbd", &nbd]).env("BIFOLIO_NBDKIT_PLUGIN", "/none.so").output().unwrap();
    assert!(sentence(&no_plugin, 1).contains("/none.so"));
    assert!(sentence(&export(&["--ublk"]).output().unwrap(), 3).contains("--nbd"));
    assert!(sentence(&export(&["--nbd", "tcp:1"]).output().unwrap(), 2).contains("unix:PATH"));
    assert_eq!(export(&[]).output().unwrap().status.code(), Some(2), "where to has to be said");
    std::fs::write(volumes.path("file"), "in the way").unwrap();
    let taken = format!("unix:{}", volumes.text("file"));
    assert!(sentence(&export(&["--nbd", &taken]).output().unwrap(), 5).contains("not a socket"));
    assert!(sentence(&export(&["--mount", &volumes.text("none")]).output().unwrap(), 1).contains("none"));
    if Path::new("/dev/fuse").exists() {
        let used = text(volumes.place.dir.path());
        assert!(sentence(&export(&["--mount", &used]).output().unwrap(), 5).contains("not empty"));
    }
}

/// Whether folders can be mounted here.
#[track_caller]
fn can_mount() -> bool {
    let can = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        bifolio_testing::skip("/dev/fuse cannot be opened here");
    }
    can
}

fn is_mounted(folder: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&text(&folder.canonicalize().unwrap()))
}

#[test]
fn a_mounted_volume_is_a_file_of_fixed_size() {
    if !has(&["cryptsetup"]) || !can_mount() {
        return;
    }
    let volumes = Volumes::new();
    let mut content = draw(5 * MIB);
    let image = volumes.filled("disk.img", &content);
    let folder = volumes.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let export = volumes.export(&image, &["--mount", &text(&folder)]);
    let file = PathBuf::from(&export.place);
    assert_eq!(file, folder.join("disk.img"));
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.img"]);
    assert!(std::fs::read(&file).unwrap() == content);

    let open = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    for (at, len) in [(0, 1), (4095, 2), (123_457, 2 * MIB + 5), (5 * MIB - 3, 3)] {
        let change = draw(len);
        open.write_all_at(&change, at as u64).unwrap();
        content[at..at + len].copy_from_slice(&change);
        let mut back = vec![0; len];
        open.read_exact_at(&mut back, at as u64).unwrap();
        assert!(back == change);
    }
    open.sync_all().unwrap();
    assert_eq!(open.read_at(&mut [0; 10], 5 * MIB as u64 + 7).unwrap(), 0, "nothing beyond the end");
    assert_eq!(open.write_at(&[1; 10], 5 * MIB as u64 - 4).unwrap(), 4, "as much as there is room");
    content[5 * MIB - 4..].fill(1);
    let beyond = open.write_at(&[1], 5 * MIB as u64).unwrap_err();
    assert_eq!(beyond.kind(), std::io::ErrorKind::StorageFull);
    // Symptom: a shorter size was taken and did nothing, so that what was cut was read afterwards.
    for size in [0, 1, 6 * MIB as u64] {
        assert_eq!(open.set_len(size).unwrap_err().raw_os_error(), Some(libc::EPERM), "{size}");
    }
    open.set_len(5 * MIB as u64).unwrap();
    drop(open);
    assert_eq!(File::create(&file).unwrap_err().raw_os_error(), Some(libc::EPERM), "it cannot be truncated");
    assert!(std::fs::remove_file(&file).is_err() && std::fs::write(folder.join("new"), "x").is_err());
    export.end();
    assert!(!is_mounted(&folder));
    assert!(volumes.content(&image) == content);
}

#[test]
fn a_folder_is_unmounted_under_load_and_its_file_lives_on_for_those_who_have_it() {
    if !has(&["cryptsetup"]) || !can_mount() {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", &vec![0; 4 * MIB]);
    let folder = volumes.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let export = volumes.export(&image, &["--mount", &text(&folder)]);
    let open = std::fs::OpenOptions::new().read(true).write(true).open(&export.place).unwrap();
    let content = draw(4 * MIB);
    std::thread::scope(|scope| {
        let (open, content) = (&open, &content);
        let load = scope.spawn(move || {
            for part in 0..4 * MIB / 4096 {
                open.write_all_at(&content[part * 4096..][..4096], part as u64 * 4096).unwrap();
            }
        });
        export.signal("TERM");
        until("the folder is unmounted", || !is_mounted(&folder));
        load.join().unwrap();
    });
    drop(open);
    let output = export.wait();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(volumes.content(&image) == content);
}

#[test]
fn a_folder_that_somebody_else_unmounts_ends_the_export() {
    if !has(&["cryptsetup", "umount"]) || !can_mount() {
        return;
    }
    let volumes = Volumes::new();
    let image = volumes.filled("disk.img", b"content");
    let folder = volumes.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let export = volumes.export(&image, &["--mount", &text(&folder)]);
    run("umount", &[&text(&folder)]);
    assert_eq!(export.wait().status.code(), Some(0));
}
