//! What a sequence of operations of one user does not show: other users, locks, and what is refused.

use crate::support::{World, can_mount};
use bifolio_mount::{MountOptions, NoReplicas, Replicas, mount};
use bifolio_testing::until;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What another user sees of a folder that he works in, on the mount and in a plain folder.
#[test]
fn another_user_has_the_rights_that_he_has_in_the_source() {
    const SCRIPT: &str = "
        umask 027
        cd \"$1\" || exit 9
        cat secret 2>/dev/null; echo secret $?
        echo x 2>/dev/null > theirs; echo theirs $?
        rm -f theirs 2>/dev/null; echo rm $?
        echo mine > own; ln -s own link; mkdir folder; mkfifo pipe; echo made $?
        echo inside > group/file; mkdir group/below; echo group $?
        chown 0 own 2>/dev/null; echo chown $?
        chmod 6751 own; stat -c '%a' own
        echo more >> own; stat -c '%a' own
        stat -c '%n %u %g %a %F' own link folder pipe group/file group/below
    ";
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let world = World::new(serves_all);
        let plain = world.beside("plain");
        fs::create_dir(&plain).unwrap();
        let run = |folder: &Path| {
            let set = |name: &str, mode| {
                fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
            };
            fs::write(folder.join("secret"), "secret").unwrap();
            fs::write(folder.join("theirs"), "theirs").unwrap();
            fs::create_dir(folder.join("group")).unwrap();
            std::os::unix::fs::chown(folder.join("group"), None, Some(77)).unwrap();
            set("secret", 0o600);
            set("theirs", 0o644);
            set("group", 0o2777);
            set("", 0o1777);
            let mut shell = Command::new("sh");
            shell.args(["-c", SCRIPT, "sh"]).arg(folder).uid(1234).gid(1235).current_dir("/");
            let output = shell.output().unwrap();
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
        };
        let (here, there) = (run(&world.mount("")), run(&plain));
        assert_eq!(here, there);
        assert!(here.contains("own 1234 1235") && here.contains("group/file 1234 77"), "{here}");
    }
}

fn lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> Result<(), i32> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the lock is there for as long as the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

#[test]
fn locks_hold_against_programs_beside_the_mount_and_go_with_their_owner() {
    if !can_mount() {
        return;
    }
    let world = World::new(false);
    fs::write(world.source("data"), [0; 100]).unwrap();
    let open = |path| File::options().read(true).write(true).open(path).unwrap();
    let (one, two, beside) = (open(world.mount("data")), open(world.mount("data")), open(world.source("data")));
    let (set, wait, write) = (libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_WRLCK);
    lock(&one, set, write, 0, 10).unwrap();
    assert_eq!(lock(&two, set, write, 5, 10), Err(libc::EAGAIN));
    assert_eq!(lock(&beside, set, libc::F_RDLCK, 9, 1), Err(libc::EAGAIN));
    lock(&two, set, write, 10, 10).unwrap();
    lock(&beside, set, write, 20, 0).unwrap();
    assert_eq!(lock(&one, set, libc::F_RDLCK, 50, 1), Err(libc::EAGAIN));
    // A lock is waited for, also one that somebody beside the mount has.
    let has_it = Arc::new(AtomicBool::new(false));
    let waiting = {
        let (has_it, one) = (Arc::clone(&has_it), one.try_clone().unwrap());
        std::thread::spawn(move || {
            lock(&one, wait, write, 30, 1).unwrap();
            has_it.store(true, Ordering::SeqCst);
        })
    };
    assert!(!has_it.load(Ordering::SeqCst));
    lock(&beside, set, libc::F_UNLCK, 20, 0).unwrap();
    waiting.join().unwrap();
    assert_eq!(lock(&beside, set, write, 30, 1), Err(libc::EAGAIN));
    // The last descriptor takes them with it.
    drop(one);
    until("the locks are gone", || lock(&beside, set, write, 0, 10).is_ok());
    lock(&beside, set, write, 30, 1).unwrap();
    assert_eq!(lock(&beside, set, write, 10, 1), Err(libc::EAGAIN), "another's stay");
    // A process's locks go with it, and it takes part as others do.
    let script =
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 60)";
    let python = |path: &Path| Command::new("python3").args(["-c", script]).arg(path).output().unwrap().status;
    if bifolio_testing::has("python3") {
        assert!(python(&world.mount("data")).success());
        lock(&two, set, write, 60, 5).unwrap();
        assert!(!python(&world.mount("data")).success());
        assert!(!python(&world.source("data")).success());
    }
}

/// Symptom that this keeps away: a program that waits for a lock could not be ended.
#[test]
fn a_program_that_waits_for_a_lock_can_be_ended() {
    if !can_mount() || !bifolio_testing::has("python3") {
        return;
    }
    let world = World::new(false);
    fs::write(world.source("data"), [0; 100]).unwrap();
    let beside = File::options().read(true).write(true).open(world.source("data")).unwrap();
    lock(&beside, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0).unwrap();
    let script =
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); print('waits', flush=True); fcntl.lockf(f, fcntl.LOCK_EX)";
    let mut child = Command::new("python3");
    child.args(["-c", script]).arg(world.mount("data")).stdout(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut said = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child.kill().unwrap();
    until("it has ended", || child.try_wait().unwrap().is_some());
}

#[test]
fn a_mount_point_in_the_source_is_refused() {
    let folder = crate::support::folder();
    let below = folder.path().join("below");
    fs::create_dir(&below).unwrap();
    let replicas: Arc<dyn Replicas> = Arc::new(NoReplicas);
    for place in [folder.path(), &below] {
        let refused = mount(folder.path(), place, &MountOptions::default(), &replicas).unwrap_err();
        assert_eq!(refused.kind(), bifolio_block::ErrorKind::BadUse);
    }
    let missing = mount(&folder.path().join("none"), &below, &MountOptions::default(), &replicas).unwrap_err();
    assert_eq!(missing.kind(), bifolio_block::ErrorKind::NotFound);
}

/// The server answers what it does not know, and goes on.
#[test]
fn a_file_without_a_name_is_refused_and_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    let world = World::new(false);
    for _ in 0..10 {
        let refused = File::options().write(true).custom_flags(libc::O_TMPFILE).open(world.mount(""));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    }
    fs::write(world.mount("data"), "here").unwrap();
    assert_eq!(fs::read(world.source("data")).unwrap(), b"here");
}

/// Whoever waits for an answer of a server whose keeper is killed gets an error, and so does everybody afterwards; what is in the
/// source stays.
#[test]
fn nobody_waits_for_a_server_whose_keeper_was_killed() {
    if !can_mount() {
        return;
    }
    for serves_all in [false, true] {
        let mut world = World::new(serves_all);
        fs::write(world.mount("data"), [1; 10_000]).unwrap();
        let open = |path| File::options().read(true).write(true).open(path).unwrap();
        let (file, beside) = (open(world.mount("data")), open(world.source("data")));
        file.write_all_at(&[2; 100], 5000).unwrap();
        lock(&beside, libc::F_OFD_SETLK, libc::F_WRLCK, 0, 0).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let waiting = {
            let file = file.try_clone().unwrap();
            std::thread::spawn(move || {
                begun.send(()).unwrap();
                lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK, 0, 10)
            })
        };
        begins.recv().unwrap();
        world.kill();
        let gone = [Err(libc::ENOTCONN), Err(libc::ECONNABORTED)];
        assert!(gone.contains(&waiting.join().unwrap()), "who waits for a lock");
        let refused = File::open(world.mount("data")).unwrap_err().raw_os_error();
        assert!(gone.contains(&Err(refused.unwrap())), "who opens a file: {refused:?}");
        let refused = fs::read_dir(world.mount("")).unwrap_err().raw_os_error();
        assert!(gone.contains(&Err(refused.unwrap())), "who lists a folder: {refused:?}");
        // What was passed when it was opened needs no server.
        match file.read_exact_at(&mut [0; 100], 5000) {
            Ok(()) => assert!(!serves_all),
            Err(error) => assert!(gone.contains(&Err(error.raw_os_error().unwrap())), "{error}"),
        }
        drop(file);
        let found = fs::read(world.source("data")).unwrap();
        assert!(found[..5000].iter().chain(&found[5100..]).all(|byte| *byte == 1));
        assert!(found[5000..5100].iter().all(|byte| *byte == 2), "what was written is in the source");
    }
}
