//! From the other side: processes that ask for what is not theirs, and such that say anything at all.

use crate::support::{FRAME, PAGE, Program, Raw, Running, folder, options};
use bifolio_cache::ErrorKind;
use bifolio_cache::service::Request;
use bifolio_daemon::protocol::{ToClient, ToServer};
use bifolio_daemon::socket::{MESSAGE_BYTES_MAX, Socket};
use bifolio_daemon::{Client, Limits, Options};
use bifolio_testing::{noise, seed, skip};
use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const LEN: u64 = FRAME + 5000;

fn is_refused(answer: &ToClient) -> bool {
    matches!(answer, ToClient::Failed { .. })
}

/// Any request, about things that are there more often than not.
fn any(random: &mut fastrand::Rng) -> ToServer {
    let number = |random: &mut fastrand::Rng| random.u64(..6);
    let at = |random: &mut fastrand::Rng| match random.u8(..8) {
        0 => random.u64(..),
        1 => u64::MAX,
        2 => LEN,
        _ => random.u64(..LEN / PAGE + 2) * PAGE + random.u64(..2),
    };
    let (file, lease) = (number(random), number(random));
    let device = if random.u8(..10) == 0 { random.usize(..64) } else { random.usize(..2) };
    let (one, other) = (at(random), at(random));
    let (range, writable) = (one.min(other)..one.max(other), random.bool());
    let acquired = (0..random.usize(..4)).map(|_| number(random)).collect();
    let request = match random.u8(..13) {
        0 => return ToServer::Open { file },
        1 => return ToServer::Close { file },
        2 => return ToServer::Lend { file, device, at: one, frame: random.u32(..20) },
        3 => Request::Map { lease, device, range },
        4 => Request::Unmap { lease, device, acquired, writable },
        5 | 6 => Request::Acquire { lease, device, range, writable },
        7 => Request::Release { lease, device, range, writable },
        8 => Request::Sync { device, acquired },
        9 => Request::Bring { device, range, writable },
        10 => Request::GiveBack { device, range },
        11 => Request::Pin { lease, device, range },
        _ if random.bool() => Request::Unpin { lease },
        _ => Request::Frames { lease, device, range },
    };
    ToServer::Ask { file, request }
}

#[test]
fn whatever_clients_ask_the_server_lives_and_others_see_what_they_wrote() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = folder();
    let (path, theirs) = (folder.path().join("data"), folder.path().join("theirs"));
    let oracle = noise(LEN as usize, 1);
    std::fs::write(&path, &oracle).unwrap();
    std::fs::write(&theirs, &oracle).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 16));
    let server = running.server();
    let client = running.connect();
    let mut program = Program::on(&client.open_path(&path).unwrap(), 1, true);
    program.mapping.acquire(0..LEN).unwrap();
    let (mut done, mut refused) = (0, 0);
    for _ in 0..6 {
        let mut raws = [Raw::connect(&running.socket), Raw::connect(&running.socket)];
        let files = [File::open(&path), File::options().read(true).write(true).open(&theirs), File::open(&theirs)];
        for _ in 0..1500 {
            let raw = &mut raws[random.usize(..2)];
            let message = any(&mut random);
            let file = files[random.usize(..3)].as_ref().unwrap();
            let with = matches!(message, ToServer::Open { .. }).then(|| file.as_fd());
            // Nobody else's memory but of the file that they may write.
            let (answer, _) = raw.ask(&message, with).unwrap();
            if is_refused(&answer) { refused += 1 } else { done += 1 }
        }
    }
    assert!(done > 500 && refused > 500, "{done} done, {refused} refused");
    assert_eq!(running.server(), server, "the server has died of it");
    assert!(program.load(0, LEN) == oracle);
    program.store(9, b"there");
    program.mapping.release(0..LEN).unwrap();
    program.mapping.sync().unwrap();
    assert_eq!(&std::fs::read(&path).unwrap()[9..14], b"there");
    drop((program, client));
    running.end();
}

#[test]
fn what_is_no_message_ends_the_connection_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(seed());
    let folder = folder();
    let running = Running::start(folder.path(), &options(folder.path(), 8));
    let server = running.server();
    for _ in 0..200 {
        let mut raw = Raw::connect(&running.socket);
        let len = random.usize(1..200);
        raw.0.send(&noise(len, random.u64(..)), None).unwrap();
        assert!(raw.hear().is_none());
    }
    let mut raw = Raw::connect(&running.socket);
    let _ = raw.0.send(&vec![0; MESSAGE_BYTES_MAX + 8], None);
    assert!(raw.hear().is_none());
    // Before hello nothing is answered but hello.
    let mut raw = Raw(Socket::connect(&running.socket).unwrap(), 0);
    assert!(is_refused(&raw.ask(&ToServer::Close { file: 1 }, None).unwrap().0));
    assert_eq!(running.server(), server);
    running.end();
}

#[test]
fn nobody_has_more_than_the_limits() {
    let folder = folder();
    let path = folder.path().join("data");
    std::fs::write(&path, noise(LEN as usize, 1)).unwrap();
    let limits = Limits {
        connections_of_user: 2,
        files: 2,
        leases: 3,
        bytes_of_user: 10 * PAGE,
        copied_bytes_of_user: FRAME,
        ..Limits::default()
    };
    let running = Running::start(folder.path(), &Options { limits, ..options(folder.path(), 8) });
    let client = loop {
        // The one that has waited for the daemon has gone in a moment.
        let (one, other) = (Client::connect(&running.socket), Client::connect(&running.socket));
        let (Ok(one), Ok(_other)) = (one, other) else { continue };
        let error = Client::connect(&running.socket).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
        break one;
    };
    let files = [client.open_path(&path).unwrap(), client.open(File::open(&path).unwrap()).unwrap()];
    assert_eq!(client.open_path(&path).unwrap_err().kind(), ErrorKind::OutOfMemory);
    let (mut program, mut reader) = (Program::on(&files[0], 0, true), Program::on(&files[1], 0, false));
    let full = program.mapping.acquire(0..11 * PAGE).unwrap_err();
    assert!(full.kind() == ErrorKind::OutOfMemory && full.to_string().contains("limit"), "{full}");
    program.mapping.acquire(0..10 * PAGE).unwrap();
    assert_eq!(reader.mapping.acquire(0..1).unwrap_err().kind(), ErrorKind::OutOfMemory);
    program.mapping.release(0..10 * PAGE).unwrap();
    reader.mapping.acquire(0..1).unwrap();
    assert_eq!(files[0].map_on(1, 0..1, true).unwrap_err().kind(), ErrorKind::OutOfMemory, "a lease too many");
    let copied = reader.mapping.release(0..1).and_then(|_| reader.mapping.acquire(FRAME..FRAME + 1)).unwrap_err();
    assert_eq!(copied.kind(), ErrorKind::OutOfMemory, "a second frame of copies");
    reader.mapping.acquire(5..6).unwrap();
    drop((program, reader, files, client));
    running.end();
}

const ATTACK: &str = "BIFOLIO_TEST_ATTACK";

/// A user whom nobody knows.
const STRANGER: u32 = 54_321;

/// Runs in a process of its own, of another user.
#[test]
fn the_stranger() {
    let Ok(plan) = std::env::var(ATTACK) else { return };
    let [what, socket, path, secret] = plan.split(' ').collect::<Vec<_>>().try_into().unwrap();
    match what {
        "refused" => {
            let error = Client::connect_trusting(socket, 0).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Permission), "{error}");
        }
        "copies" => steal(Path::new(socket), Path::new(path), Path::new(secret)),
        "lent" => {
            let client = Client::connect_trusting(socket, 0).unwrap();
            let file = client.open(File::options().read(true).write(true).open(path).unwrap()).unwrap();
            let mut program = Program::on(&file, 0, true);
            program.mapping.acquire(0..10).unwrap();
            program.store(0, b"member");
            program.mapping.release(0..10).unwrap();
        }
        _ => unreachable!("{what}"),
    }
    // Only who has come so far has done it.
    std::process::exit(77);
}

/// May write to one file, and read no other.
fn steal(socket: &Path, path: &Path, secret: &Path) {
    assert!(File::open(secret).is_err());
    let mut raw = Raw::connect(socket);
    // A path that may be found proves no right to what is there.
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(secret).unwrap();
    assert!(is_refused(&raw.ask(&ToServer::Open { file: 9 }, Some(found.as_fd())).unwrap().0));
    let alone = File::options().write(true).open(path).unwrap();
    assert!(is_refused(&raw.ask(&ToServer::Open { file: 9 }, Some(alone.as_fd())).unwrap().0));
    assert!(is_refused(&raw.ask(&ToServer::Open { file: 9 }, None).unwrap().0));
    let special = File::open("/proc/self/status").unwrap();
    assert!(is_refused(&raw.ask(&ToServer::Open { file: 9 }, Some(special.as_fd())).unwrap().0));
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (opened, _) = raw.ask(&ToServer::Open { file: 1 }, Some(file.as_fd())).unwrap();
    assert!(matches!(opened, ToClient::Opened { is_lent: false, .. }), "{opened:?}");
    let (device, lease, range) = (0, 1, 0..LEN);
    assert!(!is_refused(&raw.request(1, Request::Map { lease, device, range: range.clone() })));
    let writable = Request::Acquire { lease: 2, device, range: range.clone(), writable: true };
    assert!(is_refused(&raw.request(1, writable)));
    let writable = Request::Bring { device, range, writable: true };
    assert!(is_refused(&raw.request(1, writable)));
    // What others have cached, and the room for it.
    assert!(is_refused(&raw.ask(&ToServer::Files { after: (0, 0) }, None).unwrap().0));
    for is_kept in [true, false] {
        assert!(is_refused(&raw.ask(&ToServer::Keep { file: 1, device, is_kept }, None).unwrap().0));
    }
    // Others' numbers, and what is not acquired.
    for lease in 0..200 {
        let acquired = (0..200).collect();
        let _ = raw.request(1, Request::Unmap { lease: lease + 100, device, acquired, writable: true });
        let _ = raw.request(1, Request::Unpin { lease: lease + 100 });
    }
    for frame in 0..200 {
        let lent = raw.ask(&ToServer::Lend { file: 1, device, at: 0, frame }, None).unwrap();
        assert!(lent.1.is_none(), "frame {frame}");
    }
    let read = Request::Acquire { lease: 3, device, range: 100..200, writable: false };
    assert!(!is_refused(&raw.request(1, read)));
    let frames = raw.request(1, Request::Frames { lease: 2, device, range: 100..200 });
    let ToClient::Frames { frames, .. } = frames else { panic!("{frames:?}") };
    let lent = raw.ask(&ToServer::Lend { file: 1, device, at: 0, frame: frames[0].1 }, None).unwrap();
    let memory = File::from(lent.1.unwrap());
    let mut seen = vec![0; FRAME as usize];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut seen, 0).unwrap();
    assert!(seen[100..200] == noise(LEN as usize, 1)[100..200]);
    assert!(seen[..100].iter().chain(&seen[200..]).all(|byte| *byte == 0), "bytes around what was acquired");
    let _ = std::os::unix::fs::FileExt::write_all_at(&memory, &[0xee; 4096], 0);
}

/// Does something as another user; false where that cannot be.
fn as_stranger(what: &str, running: &Running, path: &Path, secret: &Path, group: u32) -> bool {
    let plan = format!("{what} {} {} {}", running.socket.display(), path.display(), secret.display());
    // Another user may not reach the folder that this program lies in. Another program copies it, as what this one
    // has open for writing would be held for a moment by every process that another test starts.
    let program = path.parent().unwrap().join("stranger");
    if !program.exists() {
        let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
        assert!(copied.success(), "{}", program.display());
    }
    let child = Command::new(program)
        .args(["attacks::the_stranger", "--exact", "--nocapture"])
        .env(ATTACK, plan)
        .current_dir("/")
        .stdout(Stdio::null())
        .gid(group)
        .uid(STRANGER)
        .spawn();
    match child {
        Ok(mut child) => {
            assert_eq!(child.wait().unwrap().code(), Some(77), "{what}");
            true
        }
        Err(error) => {
            skip(format!("no process of another user can be started here: {error}"));
            false
        }
    }
}

#[test]
fn other_users_get_copies_of_what_they_may_read_or_nothing() {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can start processes of other users");
    }
    let folder = folder();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let (path, secret) = (folder.path().join("data"), folder.path().join("secret"));
    let oracle = noise(LEN as usize, 1);
    for (file, mode) in [(&path, 0o666), (&secret, 0o600)] {
        std::fs::write(file, &oracle).unwrap();
        std::fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }
    let own = options(folder.path(), 12);
    let others = Options { serves_others: true, ..own.clone() };
    let group = Options { group: Some(STRANGER), ..own.clone() };
    for (what, options) in [("refused", own), ("copies", others), ("lent", group)] {
        let running = Running::start(folder.path(), &options);
        let server = running.server();
        let client = running.connect();
        // Somebody works meanwhile.
        let mut programs = [&path, &secret].map(|path| Program::on(&client.open_path(path).unwrap(), 0, true));
        for program in &mut programs {
            program.mapping.acquire(0..LEN).unwrap();
            program.store(FRAME, b"mine");
        }
        let gid = if what == "lent" { STRANGER } else { 0xfff0 };
        if !as_stranger(what, &running, &path, &secret, gid) {
            return;
        }
        assert_eq!(running.server(), server, "the server has died of it");
        for (number, program) in programs.iter_mut().enumerate() {
            let mut expected = oracle.clone();
            expected[FRAME as usize..FRAME as usize + 4].copy_from_slice(b"mine");
            if what == "lent" && number == 0 {
                // On the same device the bytes are one.
                expected[..6].copy_from_slice(b"member");
            }
            assert!(program.load(0, LEN) == expected, "{what}");
            program.mapping.release(0..LEN).unwrap();
        }
        drop((programs, client));
        running.end();
        std::fs::write(&path, &oracle).unwrap();
        std::fs::write(&secret, &oracle).unwrap();
    }
}

#[test]
fn frames_that_were_lent_are_never_another_files() {
    let folder = folder();
    let (path, other) = (folder.path().join("data"), folder.path().join("other"));
    std::fs::write(&path, vec![1; FRAME as usize]).unwrap();
    std::fs::write(&other, vec![2; 4 * FRAME as usize]).unwrap();
    let running = Running::start(folder.path(), &options(folder.path(), 9));
    let (one, two) = (running.connect(), running.connect());
    let mut first = Program::on(&one.open_path(&path).unwrap(), 0, true);
    first.mapping.acquire(0..FRAME).unwrap();
    first.mapping.release(0..FRAME).unwrap();
    // The other file takes all memory there is.
    let mut second = Program::on(&two.open_path(&other).unwrap(), 0, true);
    second.mapping.acquire(0..4 * FRAME).unwrap();
    first.store(0, &vec![0xee; FRAME as usize]);
    assert!(second.load(0, 4 * FRAME).iter().all(|byte| *byte == 2));
    second.mapping.release(0..4 * FRAME).unwrap();
    second.mapping.acquire(0..4 * FRAME).unwrap();
    assert!(second.load(0, 4 * FRAME).iter().all(|byte| *byte == 2));
    drop((first, second, one, two));
    running.end();
    assert!(std::fs::read(&other).unwrap().iter().all(|byte| *byte == 2));
}
