//! `bifolio crypt`: what each command says and does, mounts in the background, and a process that is killed.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{Place, json, sentence};

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

fn can_mount() -> bool {
    let has = Path::new("/dev/fuse").exists();
    if !has {
        println!("skipped: there is no /dev/fuse");
    }
    has
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
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
    assert!(sentence(&run(&place, "init cipher --passfile pass"), 1).contains("not empty"));
    let key = done(&run(&place, "info cipher --masterkey --passfile pass"));
    assert_eq!(key.trim().len(), 64);
    fs::write(place.dir.path().join("new"), "new\n").unwrap();
    assert!(
        sentence(&run(&place, "passwd cipher --passfile new --newpassfile pass"), 1).contains("passphrase is wrong")
    );
    done(&run(&place, "passwd cipher --passfile pass --newpassfile new"));
    assert!(sentence(&run(&place, "info cipher --masterkey --passfile pass"), 1).contains("passphrase is wrong"));
    assert_eq!(done(&run(&place, "info cipher --masterkey --passfile new")), key);
    assert_eq!(done(&command(&place, "info cipher --masterkey").args(["--extpass", "cat new"]).output().unwrap()), key);
    // The configuration is lost.
    fs::remove_file(place.dir.path().join("cipher/gocryptfs.conf")).unwrap();
    assert!(sentence(&run(&place, "info cipher"), 1).contains("no gocryptfs.conf"));
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
    assert!(sentence(&run(&place, "info mount"), 1).contains("no gocryptfs.conf"));
    assert!(sentence(&run(&place, "info nothing"), 1).contains("nothing"));
    assert!(sentence(&run(&place, "mount --passfile pass cipher pass"), 1).contains("no directory"));
    assert!(sentence(&run(&place, "mount --passfile pass cipher cipher"), 1).contains("itself"));
    assert!(sentence(&run(&place, "mount --passfile nothing cipher mount"), 1).contains("reading the key"));
    assert!(sentence(&run(&place, "mount -o sync --passfile pass cipher mount"), 2).contains("sync"));
    assert!(sentence(&run(&place, "cat --masterkey 123 cipher f"), 2).contains("64"));
    assert!(sentence(&run(&place, "cat --passfile pass cipher f"), 1).contains("f: "));
    assert!(sentence(&run(&place, "cat --extpass false cipher f"), 1).contains("false"));
    fs::write(place.dir.path().join("wrong"), "wrong").unwrap();
    for options in ["", "--fg"] {
        let said = sentence(&run(&place, &format!("mount {options} --passfile wrong cipher mount")), 1);
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
        let pid = served.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap().success());
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
    assert!(said.contains("block 2 (offset 8192,") && said.contains("not given out"), "{said}");
}

/// Whatever is on disk when the process is killed, what was synced is whole.
#[test]
fn what_was_synced_survives_a_kill_under_load() {
    if !can_mount() {
        return;
    }
    let place = initialised();
    let content = |thread: usize, round: usize| vec![(thread * 50 + round) as u8 | 1; 1000 + round * 3777];
    for after_ms in [30, 120] {
        let mut served = Served::start(&place);
        let folder = served.at.join(format!("after-{after_ms}"));
        fs::create_dir(&folder).unwrap();
        let synced: Vec<Vec<String>> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    let folder = &folder;
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
                        }
                        synced
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(after_ms));
            served.child.kill().unwrap();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        drop(served);
        let again = Served::start(&place);
        let folder = again.at.join(format!("after-{after_ms}"));
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
