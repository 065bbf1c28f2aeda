//! `bifolio crypt`: what each command says and does, mounts in the background, and a process that is killed.

use crate::support::{self, Place, json, sentence};
use bifolio_crypt::{CipherDir, Key};
use bifolio_testing::until;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

const BLOCK: u64 = 4096;

/// A place with an encrypted directory, a mount point and a file with the passphrase.
fn place() -> Place {
    let place = Place::new();
    for folder in ["cipher", "mount"] {
        fs::create_dir(place.dir.path().join(folder)).unwrap();
    }
    fs::write(place.dir.path().join("pass"), "a passphrase\nand another line\n").unwrap();
    place
}

fn initialised() -> Place {
    let place = place();
    done(&run(&place, "init cipher --scryptn 10 --passfile pass"));
    place
}

/// With one file, which is found without the command.
fn with_a_file() -> Place {
    let place = initialised();
    let dir = CipherDir::open(&place.dir.path().join("cipher"), &Key::Passphrase(b"a passphrase")).unwrap();
    dir.create_file(Path::new("file")).unwrap().write_at(b"content", 0).unwrap();
    place
}

/// Whether system calls can be watched here. Set-up does not install what does.
#[track_caller]
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).output();
    let can = traced.is_ok_and(|output| output.status.success());
    if !can {
        bifolio_testing::skip("strace is not there, or may not trace");
    }
    can
}

fn run(place: &Place, line: &str) -> Output {
    command(place, line).output().unwrap()
}

fn command(place: &Place, line: &str) -> Command {
    let args: Vec<_> = std::iter::once("crypt").chain(line.split_whitespace()).collect();
    let mut command = place.command(&args);
    command.current_dir(place.dir.path()).stdin(Stdio::null());
    command
}

#[track_caller]
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn can_mount() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        bifolio_testing::skip("there is no /dev/fuse");
    }
    has
}

fn is_mounted(at: &Path) -> bool {
    let at = at.canonicalize().unwrap_or_else(|_| at.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == at.to_str())
}

/// Unmounts it. Whatever watches mounts may look at it for a moment.
fn unmount(at: &Path) {
    let unmount = || Command::new("fusermount3").arg("-u").arg(at).stderr(Stdio::null()).status().unwrap().success();
    until("it is unmounted", unmount);
}

/// A mount that a process in the foreground serves.
struct Served {
    child: Child,
    at: PathBuf,
}

impl Served {
    fn start(place: &Place) -> Self {
        let at = place.dir.path().join("mount");
        let child = command(place, "mount --fg --passfile pass cipher mount").stderr(Stdio::piped()).spawn().unwrap();
        until("it is mounted", || is_mounted(&at));
        Self { child, at }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_directory_is_made_looked_at_and_its_passphrase_changed() {
    let place = initialised();
    assert!(
        done(&run(&place, "info cipher")).contains("FeatureFlags:      HKDF GCMIV128 DirIV EMENames LongNames Raw64")
    );
    let info = json(&run(&place, "info cipher --json"));
    assert_eq!((info["scrypt_n"].as_u64(), info["encrypted_key_bytes"].as_u64()), (Some(1024), Some(64)));
    assert!(sentence(&run(&place, "init cipher --passfile pass"), 5).contains("not empty"));
    let key = done(&run(&place, "info cipher --masterkey --passfile pass"));
    assert_eq!(key.trim().len(), 64);
    fs::write(place.dir.path().join("new"), "new\n").unwrap();
    assert!(
        sentence(&run(&place, "passwd cipher --passfile new --newpassfile pass"), 6).contains("passphrase is wrong")
    );
    done(&run(&place, "passwd cipher --passfile pass --newpassfile new"));
    assert!(sentence(&run(&place, "info cipher --masterkey --passfile pass"), 6).contains("passphrase is wrong"));
    assert_eq!(done(&run(&place, "info cipher --masterkey --passfile new")), key);
    assert_eq!(done(&command(&place, "info cipher --masterkey").args(["--extpass", "cat new"]).output().unwrap()), key);
    // The configuration is lost.
    fs::remove_file(place.dir.path().join("cipher/gocryptfs.conf")).unwrap();
    assert!(sentence(&run(&place, "info cipher"), 7).contains("no gocryptfs.conf"));
    let line = format!("passwd cipher --masterkey {} --newpassfile pass", key.trim());
    done(&run(&place, &line));
    assert_eq!(done(&run(&place, "info cipher --masterkey --passfile pass")), key);
    for options in ["--plaintextnames", "--longnamemax 62"] {
        fs::remove_dir_all(place.dir.path().join("cipher")).unwrap();
        fs::create_dir(place.dir.path().join("cipher")).unwrap();
        done(&run(&place, &format!("init cipher --scryptn 10 --passfile pass {options}")));
        let flag = if options.contains("plain") { "PlaintextNames" } else { "LongNameMax" };
        assert!(done(&run(&place, "info cipher")).contains(flag));
    }
}

#[test]
fn mistakes_are_sentences() {
    let place = initialised();
    assert!(sentence(&run(&place, "info mount"), 7).contains("no gocryptfs.conf"));
    assert!(sentence(&run(&place, "info nothing"), 1).contains("nothing"));
    assert!(sentence(&run(&place, "mount --passfile pass cipher pass"), 1).contains("not a directory"));
    assert!(sentence(&run(&place, "mount --passfile pass cipher cipher"), 1).contains("itself"));
    assert!(sentence(&run(&place, "mount --passfile nothing cipher mount"), 1).contains("reading the key"));
    assert!(sentence(&run(&place, "mount -o sync --passfile pass cipher mount"), 2).contains("sync"));
    assert!(sentence(&run(&place, "cat --masterkey 123 cipher f"), 2).contains("64"));
    assert!(sentence(&run(&place, "cat --passfile pass cipher f"), 1).contains("f: "));
    assert!(sentence(&run(&place, "cat --extpass false cipher f"), 1).contains("false"));
    fs::write(place.dir.path().join("wrong"), "wrong").unwrap();
    for options in ["", "--fg"] {
        let said = sentence(&run(&place, &format!("mount {options} --passfile wrong cipher mount")), 6);
        assert!(said.contains("passphrase is wrong"), "{said}");
    }
    let config = place.dir.path().join("cipher/gocryptfs.conf");
    let text = fs::read_to_string(&config).unwrap();
    fs::remove_file(&config).unwrap();
    fs::write(&config, text.replace("\"Raw64\"", "\"Raw64\", \"AESSIV\"")).unwrap();
    assert!(sentence(&run(&place, "mount --passfile pass cipher mount"), 3).contains("AES-SIV"));
}

#[test]
fn a_mount_in_the_background_returns_when_it_is_there_and_ends_when_it_is_unmounted() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let at = place.dir.path().join("mount");
    // Its output is a pipe, which the process in the background must not hold.
    assert_eq!(done(&run(&place, "mount --passfile pass cipher mount")), "");
    assert!(is_mounted(&at));
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 3) as u8).collect();
    fs::write(at.join("file"), &content).unwrap();
    let output = run(&place, "cat --passfile pass cipher file");
    assert!(output.stdout == content);
    assert!(sentence(&run(&place, "mount --passfile pass cipher mount"), 1).contains("not empty"));
    unmount(&at);
    assert!(!is_mounted(&at));
    let key = done(&run(&place, "info cipher --masterkey --passfile pass"));
    done(&run(&place, &format!("mount --ro --masterkey {} cipher mount", key.trim())));
    assert!(fs::read(at.join("file")).unwrap() == content);
    assert!(fs::write(at.join("other"), "").is_err());
    unmount(&at);
}

#[test]
fn a_signal_unmounts_it() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    for signal in ["INT", "TERM"] {
        let mut served = Served::start(&place);
        fs::write(served.at.join(signal), "content").unwrap();
        support::signal(served.child.id(), signal);
        let status = served.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert!(!is_mounted(&served.at));
    }
    assert_eq!(run(&place, "cat --passfile pass cipher TERM").stdout, b"content");
}

#[test]
fn an_unreadable_block_is_named_on_stderr() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let mut served = Served::start(&place);
    fs::write(served.at.join("file"), vec![7; 5 * BLOCK as usize]).unwrap();
    let folder = place.dir.path().join("cipher");
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let cipher = entries.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    File::options().write(true).open(cipher).unwrap().write_all_at(b"changed", 18 + 2 * (BLOCK + 32) + 500).unwrap();
    // What the kernel has cached is not read again.
    drop(served);
    served = Served::start(&place);
    assert!(fs::read(served.at.join("file")).is_err());
    unmount(&served.at);
    assert!(served.child.wait().unwrap().success());
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("block 2 (offset 8192,") && said.contains("none of it was returned"), "{said}");
}

/// A wrong master key was wrapped by the new passphrase, and the old configuration replaced by it: afterwards neither
/// passphrase opened the directory.
#[test]
fn a_wrong_master_key_leaves_the_passphrase_as_it_was() {
    let place = with_a_file();
    let config = place.dir.path().join("cipher/gocryptfs.conf");
    let before = fs::read(&config).unwrap();
    let key = done(&run(&place, "info cipher --masterkey --passfile pass"));
    fs::write(place.dir.path().join("new"), "new\n").unwrap();
    let wrong = "0123456789abcdef".repeat(4);
    let said = sentence(&run(&place, &format!("passwd cipher --masterkey {wrong} --newpassfile new")), 6);
    assert!(said.contains("another directory's"), "{said}");
    assert_eq!(fs::read(&config).unwrap(), before);
    assert_eq!(done(&run(&place, "cat --passfile pass cipher file")), "content");
    let said = done(&run(&place, &format!("passwd cipher --masterkey {} --newpassfile new", key.trim())));
    assert_eq!(said, "cipher: the passphrase was changed\n");
    assert_eq!(done(&run(&place, "cat --passfile new cipher file")), "content");
    assert!(!place.dir.path().join("cipher/gocryptfs.conf.bak").exists());
}

/// Killed at any system call by which names of the configuration change, there is one that opens.
#[test]
fn a_change_of_the_passphrase_that_is_killed_leaves_one_that_opens() {
    if !can_trace() {
        return;
    }
    let place = with_a_file();
    let cipher = place.dir.path().join("cipher");
    fs::write(place.dir.path().join("new"), "new\n").unwrap();
    let mut kills = 0;
    for call in ["fsync", "linkat", "renameat2", "unlinkat"] {
        for count in 1..3 {
            let mut command = Command::new("strace");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("inject={call}:signal=KILL:when={count}")]);
            command.arg(env!("CARGO_BIN_EXE_bifolio")).args(["crypt", "passwd", "cipher"]);
            command.args(["--passfile", "pass", "--newpassfile", "new"]);
            let output = command.current_dir(place.dir.path()).stdin(Stdio::null()).output().unwrap();
            kills += usize::from(!output.status.success());
            let opens = ["pass", "new"]
                .map(|pass| run(&place, &format!("cat --passfile {pass} cipher file")).stdout == b"content");
            assert!(opens[0] || opens[1], "killed at {call} number {count}");
            // By hand, as the sentence about a backup says.
            let backup = cipher.join("gocryptfs.conf.bak");
            if backup.exists() {
                fs::remove_file(backup).unwrap();
            }
            if opens[1] {
                done(&run(&place, "passwd cipher --passfile new --newpassfile pass"));
            }
        }
    }
    assert!(kills >= 4, "{kills} were killed");
}

/// `--plaintextnames` was believed against the configuration: names as they are on disk were shown, and what was
/// written by them was hidden afterwards.
#[test]
fn plain_names_are_told_only_of_a_directory_without_a_configuration() {
    let place = with_a_file();
    let key = done(&run(&place, "info cipher --masterkey --passfile pass"));
    let key = key.trim();
    for line in ["mount cipher mount", "mount --fg cipher mount", "cat cipher file", "passwd cipher --newpassfile pass"]
    {
        let said = sentence(&run(&place, &format!("{line} --plaintextnames --masterkey {key}")), 1);
        assert!(said.contains("names are encrypted"), "{said}");
    }
    assert_eq!(done(&run(&place, "cat --passfile pass cipher file")), "content");
}

/// Lines of one pipe: what the reader of the first line had read of the second was lost, if the pipe had it already.
#[test]
fn secrets_through_one_pipe_are_a_line_each_however_it_is_filled() {
    let place = with_a_file();
    // The first number is how many bytes come before the reader has taken all of them, and so on.
    let (forth, back) = ("a passphrase\nnew\n", "new\na passphrase\n");
    for (line, parts) in
        [(forth, vec![forth.len()]), (back, vec![1; back.len()]), (forth, vec![15, 2]), (back, vec![2, 2, 13])]
    {
        let mut child = command(&place, "passwd cipher").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let mut rest = line.as_bytes();
        for part in parts {
            let (now, later) = rest.split_at(part);
            pipe.write_all(now).unwrap();
            rest = later;
            if !rest.is_empty() {
                until("the pipe is empty", || waiting(&pipe) == 0);
            }
        }
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(done(&run(&place, "cat --passfile pass cipher file")), "content");
    // By names that stand for the same pipe, and by one that is a file's.
    let named = "passwd cipher --passfile /dev/stdin --newpassfile /dev/stdin";
    assert_eq!(fed(&place, named, "a passphrase\nnew\n").status.code(), Some(0));
    assert_eq!(fed(&place, "passwd cipher --passfile - --newpassfile pass", "new\n").status.code(), Some(0));
    // One line is missing.
    let said = sentence(&fed(&place, "passwd cipher", "a passphrase\n"), 1);
    assert!(said.contains("standard input ended"), "{said}");
    assert_eq!(done(&run(&place, "cat --passfile pass cipher file")), "content");
}

/// Bytes in a pipe that nobody has read.
fn waiting(pipe: &ChildStdin) -> i32 {
    let mut bytes = 0;
    // SAFETY: the descriptor is open, and there is room for the number.
    assert_eq!(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut bytes) }, 0);
    bytes
}

fn fed(place: &Place, line: &str, input: &str) -> Output {
    let mut command = command(place, line);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The configuration's strings, and names that somebody gave to files, were printed as they are: an escape sequence
/// in them is obeyed by the terminal.
#[test]
fn what_comes_from_files_is_printed_without_control_characters() {
    let place = initialised();
    let config = place.dir.path().join("cipher/gocryptfs.conf");
    let text = fs::read_to_string(&config).unwrap();
    let change = |from: &str, to: &str| {
        fs::remove_file(&config).unwrap();
        fs::write(&config, text.replacen(from, to, 1)).unwrap();
    };
    change("\"bifolio ", "\"\\u001b[2J\\nForged: \\u009b\u{202e}");
    let info = run(&place, "info cipher");
    let said = done(&info);
    assert!(said.starts_with("Creator:           \\u{1b}[2J"), "{said:?}");
    assert_eq!(said.lines().count(), 5);
    assert!(!said.contains(|one: char| (one.is_control() && one != '\n') || one == '\u{202e}'), "{said:?}");
    let creator = json(&run(&place, "info cipher --json"))["creator"].as_str().unwrap().to_owned();
    assert!(creator.starts_with("\u{1b}[2J\nForged: \u{9b}\u{202e}"), "{creator:?}");
    for (from, to) in [("\"Raw64\"", "\"\\u001b[31mRaw\""), ("\"Version\": 2", "\"Version\": \"\\u001b[31m\"")] {
        change(from, to);
        let said = sentence(&run(&place, "info cipher"), 7);
        assert!(said.contains("[31m") && !said.trim_end().contains(char::is_control), "{said:?}");
    }
    change("", "");
    let said = sentence(&command(&place, "cat --passfile pass cipher").arg("no\u{1b}[2J\nname").output().unwrap(), 1);
    assert!(!said.trim_end().contains(char::is_control), "{said:?}");
}

/// Costs are refused before any work where they are no whole numbers in range, and a key that takes long is given up
/// at the first signal.
#[test]
fn hostile_costs_are_refused_and_a_key_is_given_up_at_the_first_signal() {
    let place = initialised();
    let config = place.dir.path().join("cipher/gocryptfs.conf");
    let text = fs::read_to_string(&config).unwrap();
    let change = |changes: &[(&str, &str)]| {
        fs::remove_file(&config).unwrap();
        let text = changes.iter().fold(text.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        fs::write(&config, text).unwrap();
    };
    for n in ["-1", "-1024", "1024.0", "4e9", "4294967295.0", "\"1024\"", "null", "18446744073709551616", "0", "1025"] {
        change(&[("1024", n)]);
        for line in
            ["cat cipher file", "passwd cipher --newpassfile pass", "info cipher --masterkey", "mount cipher mount"]
        {
            let said = sentence(&run(&place, &format!("{line} --passfile pass")), 7);
            assert!(said.contains("gocryptfs.conf"), "{n}: {said}");
        }
    }
    // Within what is done, and minutes long in this build's tests.
    change(&[("\"P\": 1", "\"P\": 32768")]);
    for (signal, line) in
        [("INT", "cat cipher file"), ("TERM", "passwd cipher --newpassfile pass"), ("INT", "mount cipher mount")]
    {
        let mut command = command(&place, &format!("{line} --passfile pass"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // A thread that works is the one with time of its own.
        until("it derives a key", || {
            let tasks = format!("/proc/{}/task", child.id());
            let mut names = fs::read_dir(tasks).unwrap().flatten();
            names.any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "bifolio-work\n"))
        });
        support::signal(child.id(), signal);
        until("it ends", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}

/// A mount by root was of the type `fuse`, and its source a path relative to where the command was started.
#[test]
fn mounts_say_what_they_are_and_of_what() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let served = Served::start(&place);
    let path = |name: &str| place.dir.path().canonicalize().unwrap().join(name).display().to_string();
    assert_eq!(type_and_source(&served.at), ("fuse.bifolio-crypt".to_owned(), path("cipher")));
    drop(served);
    done(&run(&place, "mount --passfile pass --fsname a,b cipher mount"));
    let at = place.dir.path().join("mount");
    assert_eq!(type_and_source(&at), ("fuse.bifolio-crypt".to_owned(), "a,b".to_owned()));
    unmount(&at);
    let volume = |line: &str| {
        let mut command = place.command(&line.split(' ').collect::<Vec<_>>());
        command.current_dir(place.dir.path()).stdin(Stdio::null());
        command
    };
    let create =
        "volume create luks2 disk.img --size 20MiB --key-file pass --pbkdf-memory 32 --pbkdf-force-iterations 4";
    assert!(volume(create).output().unwrap().status.success());
    let mut child =
        volume("volume export disk.img --key-file pass --mount mount").stdout(Stdio::null()).spawn().unwrap();
    until("it is mounted", || is_mounted(&at));
    let found = type_and_source(&at);
    unmount(&at);
    child.wait().unwrap();
    assert_eq!(found, ("fuse.bifolio".to_owned(), path("disk.img")));
}

/// What the kernel says of a mount.
fn type_and_source(at: &Path) -> (String, String) {
    let at = at.canonicalize().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == at.to_str()).unwrap();
    let mut behind = line.split_once(" - ").unwrap().1.split(' ').map(str::to_owned);
    (behind.next().unwrap(), behind.next().unwrap())
}

/// Up to a thousand directories were kept open whatever the process might open: with a limit of 64 everything failed
/// with EMFILE after as many.
#[test]
fn a_mount_lives_within_its_limit_of_descriptors() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let at = place.dir.path().join("mount");
    let program = env!("CARGO_BIN_EXE_bifolio");
    let line = format!("ulimit -n 64; exec {program} crypt mount --fg --passfile pass cipher mount");
    let child = Command::new("sh").args(["-c", &line]).current_dir(place.dir.path()).spawn().unwrap();
    until("it is mounted", || is_mounted(&at));
    let served = Served { child, at };
    let open = || fs::read_dir(format!("/proc/{}/fd", served.child.id())).unwrap().count();
    let before = open();
    let long = "l".repeat(200);
    for number in 0..200 {
        let folder = served.at.join(format!("folder-{number}-{long}"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("inner")).unwrap();
        fs::write(folder.join("inner/file"), number.to_string()).unwrap();
        assert!(open() < 60, "{} are open", open());
    }
    // An eighth for directories, and a few for a moment.
    assert!(open() <= before + 12, "{before} and then {} are open", open());
    // With most of them in use by programs; each program has some of its own for a moment.
    let held: Vec<File> = (0..64)
        .map_while(|number| File::open(served.at.join(format!("folder-{number}-{long}/inner/file"))).ok())
        .collect();
    assert!((20..60).contains(&held.len()), "{} files could be opened", held.len());
    drop(held);
    until("files are closed", || open() <= before + 12);
    for number in (0..200).rev() {
        let folder = served.at.join(format!("folder-{number}-{long}"));
        assert_eq!(fs::read_to_string(folder.join("inner/file")).unwrap(), number.to_string());
    }
    for number in 0..200 {
        fs::remove_dir_all(served.at.join(format!("folder-{number}-{long}"))).unwrap();
    }
    assert_eq!(fs::read_dir(&served.at).unwrap().count(), 0);
}

/// Whatever is on disk when the process is killed, what was synced is whole.
#[test]
fn what_was_synced_survives_a_kill_under_load() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let content = |thread: usize, round: usize| vec![(thread * 50 + round) as u8 | 1; 1000 + round * 3777];
    for after in [5, 60] {
        let mut served = Served::start(&place);
        let folder = served.at.join(format!("after-{after}"));
        let count = AtomicUsize::new(0);
        fs::create_dir(&folder).unwrap();
        let synced: Vec<Vec<String>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    let (folder, count) = (&folder, &count);
                    scope.spawn(move || {
                        let mut synced = vec![];
                        for round in 0..10_000 {
                            let name = format!("{thread}-{round}-{}", "n".repeat(round % 220));
                            let written = File::create(folder.join(&name)).and_then(|mut file| {
                                file.write_all(&content(thread, round % 40))?;
                                file.sync_all()
                            });
                            // The process is gone.
                            if written.is_err() {
                                break;
                            }
                            synced.push(name);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        synced
                    })
                })
                .collect();
            until("files are written", || count.load(Ordering::Relaxed) >= after);
            served.child.kill().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        drop(served);
        let again = Served::start(&place);
        let folder = again.at.join(format!("after-{after}"));
        for (thread, names) in synced.iter().enumerate() {
            for (round, name) in names.iter().enumerate() {
                assert!(fs::read(folder.join(name)).unwrap() == content(thread, round % 40), "{name}");
            }
        }
        // Everything that is listed can be looked at and removed, also what was being made.
        for entry in fs::read_dir(&folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        fs::remove_dir(&folder).unwrap();
    }
}
