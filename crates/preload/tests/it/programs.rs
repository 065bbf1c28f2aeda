//! Programs that know nothing of Bifolio, under the shim.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The shim, which cargo built beside the tests.
fn shim() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    let library = folder.join("libbifolio_preload.so");
    let library = if library.exists() { library } else { folder.join("../libbifolio_preload.so") };
    assert!(library.exists(), "{} is missing", library.display());
    library
}

fn under_shim(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", shim()).env("BIFOLIO_HOST_MEMORY", "1G");
    command
}

fn compile(source: &str, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let outcome = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source))
        .args(["-pthread", "-ldl"])
        .output()
        .expect("a C compiler");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    program
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_program_reads_and_writes_device_memory_by_the_calls_it_knows() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = compile("device.c", folder.path());
    let log = folder.path().join("log");
    let mut ways = vec!["fenced"];
    let has_cuda =
        bifolio_device::discover().iter().any(|report| report.backend == "cuda" && !report.devices.is_empty());
    if has_cuda {
        ways.extend(["cuda", "cuda-own"]);
    } else {
        bifolio_testing::skip("there is no CUDA device here for the program to use");
    }
    for way in ways {
        let output =
            under_shim(&program).arg(way).arg(folder.path()).env("BIFOLIO_PRELOAD_LOG", &log).output().unwrap();
        assert!(output.status.success(), "{way}: {}", text(&output));
        assert_eq!(text(&output), "all is well\n");
        // The log says how much went which way.
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(said.contains("reads into device memory") && said.contains("in a child of the process"), "{said}");
    }
}

/// The same program has mappings of the CPU's without the shim, and of devices under it.
#[test]
fn a_program_maps_a_file_on_devices_by_a_flag_of_mmap() {
    for shimmed in [false, true] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = compile("mapped.c", folder.path());
        let (data, log) = (folder.path().join("data"), folder.path().join("log"));
        std::fs::write(&data, vec![b'.'; 200_000]).unwrap();
        let mut command = if shimmed { under_shim(&program) } else { Command::new(&program) };
        command.arg(&data).env("BIFOLIO_PRELOAD_LOG", &log).env("XDG_RUNTIME_DIR", folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{shimmed}: {}", text(&output));
        let mapped = if shimmed { "mapped on devices\n" } else { "mapped by the CPU\n" };
        assert_eq!(String::from_utf8_lossy(&output.stdout), mapped);
        // Of the process that has closed descriptors which are not its own.
        let said = String::from_utf8_lossy(&output.stderr);
        let is_lost =
            said.lines().count() == 1 && said.contains("/data: what was released of bytes 0 to 65536 (1 page)");
        assert!(if shimmed { is_lost } else { said.is_empty() }, "{said}");
        let mut expected = vec![b'.'; 200_000];
        (0..100_000).step_by(2).for_each(|at| (expected[at], expected[at + 1]) = (b'0', b'1'));
        expected[150_000..150_003].copy_from_slice(b"end");
        assert!(std::fs::read(&data).unwrap() == expected, "{shimmed}");
        if shimmed {
            let said = std::fs::read_to_string(&log).unwrap();
            assert!(said.contains("MAP_SHARED alone") && said.contains("was forked"), "{said}");
        }
    }
}

/// Symptom: what one library of a process had released, another did not see. Cause: each had a cache of its own, and took
/// what the other wrote, while it wrote itself, for its own.
#[test]
fn several_libraries_in_one_process_have_one_cache() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = compile("two_faces.c", folder.path());
    // Cargo builds it for these tests, and another copy has another identity for the loader.
    let library = shim().with_file_name("libbifolio.so");
    let copy = folder.path().join("libcopy.so");
    std::fs::copy(&library, &copy).unwrap();
    let [library, copy] = [&library, &copy].map(|path| path.to_str().unwrap());
    for libraries in [["shim", library], [library, "shim"], [library, copy]] {
        let data = folder.path().join("data");
        std::fs::write(&data, [0; 5000]).unwrap();
        let mut command = under_shim(&program);
        command.arg(&data).args(libraries).env("BIFOLIO_CACHE_MODE", "eager").env("XDG_RUNTIME_DIR", folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{libraries:?}: {}", text(&output));
        assert_eq!(text(&output), "both saw both\n");
    }
}

/// A shell script and the same under the shim: output, status and files are the same.
fn check_script(script: &str) {
    let mut seen = Vec::new();
    for shimmed in [false, true] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = Command::new("sh");
        if shimmed {
            command.env("LD_PRELOAD", shim());
        }
        let output = command.args(["-c", script]).current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        let mut files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|file| file.path()).collect();
        files.sort();
        let files: Vec<_> = files
            .iter()
            .map(|file| (file.file_name().unwrap().to_owned(), std::fs::read(file).unwrap_or_default()))
            .collect();
        seen.push((output.status.code(), text(&output), files));
    }
    assert!(
        seen[0] == seen[1],
        "{script}\nwithout: {:?} {}\nwith: {:?} {}",
        seen[0].0,
        seen[0].1,
        seen[1].0,
        seen[1].1
    );
    assert!(!seen[0].2.is_empty() || !seen[0].1.is_empty(), "{script} does nothing");
}

#[test]
fn coreutils_do_under_the_shim_what_they_do_without() {
    for script in [
        "seq 1 100000 > a; cat a a > b; head -c 12345 b > c; tail -c +777 b | sort | uniq -c | md5sum; wc b c",
        "yes | head -c 1000000 > a; dd if=a of=b bs=4097 skip=3 seek=5 conv=notrunc,sync 2>/dev/null; cksum a b; cmp a b",
        "seq 1 5 > a; seq 6 9 >> a; (read x; echo $x; cat) < a; tac a; od -c a | tail -3",
        "printf x > a; dd if=a of=a bs=1 count=1 oflag=append conv=notrunc 2>/dev/null; cat a missing; cat .; echo $?",
        "seq 1 20000 | tee a b | sha256sum; cp a c; cp --sparse=always a d; split -n 3 a part; paste a b | tail -1",
        "mkfifo p; (seq 1 1000 > p &) ; cat p | tail -1; (head -1; cat >/dev/null) < /dev/null; rm p; echo done > e",
        "tar cf a.tar --mtime=@0 --owner=0 --group=0 /etc/hostname 2>/dev/null; tar tf a.tar; gzip -n < a.tar > z; gunzip < z | cmp - a.tar; rm z; echo ok",
        "exec 3<>a; echo hello >&3; exec 3>&-; cat a; ulimit -f 1; yes > b; wc -c < b",
    ] {
        check_script(script);
    }
}

#[test]
fn other_languages_runtimes_work_under_the_shim() {
    if !bifolio_testing::has("python3") {
        return;
    }
    // Forks, threads, sockets, signals that interrupt reads, and files opened and closed by the hundred.
    let program = r"
import os, signal, socket, subprocess, sys, tempfile, threading
def handler(*_): pass
signal.signal(signal.SIGALRM, handler)
r, w = os.pipe()
signal.setitimer(signal.ITIMER_REAL, 0.05)
threading.Timer(0.2, lambda: os.write(w, b'late')).start()
assert os.read(r, 10) == b'late'
a, b = socket.socketpair()
a.sendall(b'x' * 100000); got = 0
while got < 100000: got += len(b.recv(65536))
with tempfile.TemporaryFile() as f:
    f.write(os.urandom(100000)); f.flush()
    assert os.pread(f.fileno(), 10, 99995) == os.pread(f.fileno(), 10, 99995) and len(os.pread(f.fileno(), 10, 99995)) == 5
for i in range(2000):
    with open('/dev/null', 'rb') as f: assert f.read(1) == b''
child = os.fork()
if child == 0: os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print(subprocess.run(['echo', 'hello'], capture_output=True).stdout)
try: os.read(999, 1)
except OSError as e: print(e.errno)
";
    let [without, with] = [Command::new("python3"), under_shim("python3")]
        .map(|mut command| command.args(["-c", program]).output().unwrap());
    assert!(without.status.success(), "{}", text(&without));
    assert_eq!((text(&with), with.status), (text(&without), without.status));
}

/// The driver is the program's business: the shim neither loads it nor asks for it.
#[test]
fn a_program_without_device_memory_has_no_driver_loaded() {
    let output = under_shim("cat").arg("/proc/self/maps").output().unwrap();
    let maps = text(&output);
    assert!(maps.contains("libbifolio_preload.so"), "the shim is not loaded: {maps}");
    assert!(!maps.contains("libcuda") && !maps.contains("libOpenCL"), "{maps}");
}
