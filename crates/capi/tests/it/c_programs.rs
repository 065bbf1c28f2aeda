//! The examples in C, compiled with warnings as errors and run on the embedded device, and a program that
//! calls everything wrongly.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of `libbifolio.so`: that of the test programs, or the one above.
fn library_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folders = program.ancestors().skip(1).take(2);
    let found = folders.into_iter().find(|folder| folder.join("libbifolio.so").exists());
    found.expect("cargo builds libbifolio.so before the tests of its package").to_owned()
}

/// Compiles against the header and the library as they are when installed.
fn compile(source: &Path, folder: &Path) -> PathBuf {
    let (library, root) = (folder.join("lib"), Path::new(env!("CARGO_MANIFEST_DIR")));
    std::fs::create_dir(&library).unwrap();
    for name in ["libbifolio.so", "libbifolio.so.0"] {
        std::os::unix::fs::symlink(library_folder().join("libbifolio.so"), library.join(name)).unwrap();
    }
    let program = folder.join(source.file_stem().unwrap());
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg("-lbifolio")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .expect("a C compiler is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn example(name: &str, folder: &Path) -> PathBuf {
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c").join(name), folder)
}

fn run(program: &Path, args: &[&Path]) -> Output {
    Command::new(program).args(args).arg("host").output().unwrap()
}

/// A folder on a disk, with a file without a pattern.
fn folder_with_data(len: usize) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let content = bifolio_testing::noise(len, 32);
    let path = folder.path().join("data");
    std::fs::write(&path, &content).unwrap();
    (folder, path, content)
}

#[test]
fn a_file_is_read_and_explained() {
    let (folder, path, _) = folder_with_data(3_000_001);
    std::fs::write(&path, [b"hello, device\n".as_slice(), &vec![b'x'; 100_000]].concat()).unwrap();
    let program = example("read.c", folder.path());
    let output = run(&program, &[&path]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("100014 bytes in host:0: hello, device"), "{text}");
    let plan: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(plan["residency"]["total_bytes"].as_u64(), Some(100_014));
    let missing = run(&program, &[&folder.path().join("missing")]);
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && text.contains("missing") && text.contains("no such file"), "{text}");
}

#[test]
fn a_batch_brings_every_extent() {
    let (folder, path, content) = folder_with_data(700_000);
    let output = run(&example("batch.c", folder.path()), &[&path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<u8> = content.chunks_exact(1024).flat_map(|blocks| blocks[..512].iter().copied()).collect();
    assert!(output.stdout == expected);
}

#[test]
fn requests_run_by_themselves() {
    let (folder, path, content) = folder_with_data(5_000_003);
    let copy = folder.path().join("copy");
    let output = run(&example("async.c", folder.path()), &[&path, &copy]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(copy).unwrap() == content);
}

#[test]
fn two_devices_write_one_mapped_file() {
    let (folder, _, _) = folder_with_data(0);
    let path = folder.path().join("shared");
    let output = run(&example("mmap.c", folder.path()), &[&path, Path::new("host:1")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (seen, stats) = text.split_once('\n').unwrap();
    let expected = "0b1d2f3h4j5l6n7p8r9t0v1x2z";
    assert_eq!(seen, format!("host:1 has {expected}"));
    assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
    let stats: serde_json::Value = serde_json::from_str(stats).unwrap();
    assert_eq!(stats["devices"][0]["device"], "host:0");
    assert_eq!(stats["devices"][1]["pages"], 1);
    assert_eq!(stats["counts"]["released"], 2);
}

#[test]
fn an_array_larger_than_its_memory_is_sorted() {
    let (folder, _, _) = folder_with_data(0);
    let output = run(&example("paged.c", folder.path()), &[Path::new("16")]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if err.contains("userfaultfd") && err.contains("not permitted") {
        return bifolio_testing::skip(err.trim());
    }
    assert!(output.status.success(), "{out}{err}");
    let numbers: Vec<u64> = out.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [words, kib, left, came_back] = numbers[..] else { panic!("{out}") };
    assert!(words == 2 << 20 && kib <= 4096, "{out}");
    // A quarter of 256 blocks is in memory, and all were written twice.
    assert!(left > 192 && came_back > 192, "{out}");
}

#[test]
fn what_is_wrong_is_refused_with_a_sentence() {
    let (folder, path, mut content) = folder_with_data(10_000);
    let program = compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/misuse.c"), folder.path());
    let output = run(&program, &[&path]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.ends_with("all refused\n"), "{out}{err}");
    content[10..18].copy_from_slice(b"released");
    assert!(std::fs::read(path).unwrap() == content);
}
