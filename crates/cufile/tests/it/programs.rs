//! Programs in C that are linked with a library of the original's name, and run on this one.

use crate::support::{SYMBOLS, bytes, folder, library};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library with the names of the original, which programs are linked with. Its functions fail, so that no
/// program runs on it by mistake.
fn stub(folder: &Path) -> PathBuf {
    let at = folder.join("linked");
    std::fs::create_dir(&at).unwrap();
    let functions: Vec<_> = SYMBOLS.iter().map(|name| format!("int {name}(void) {{ __builtin_trap(); }}")).collect();
    let code = at.join("stub.c");
    std::fs::write(&code, functions.join("\n")).unwrap();
    let mut compiler = cc();
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libcufile.so.0", "-o"]).arg(at.join("libcufile.so")).arg(&code);
    succeeded(&compiler.output().expect("a C compiler is there"));
    at
}

fn cc() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn succeeded(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    out.into_owned()
}

fn compile(name: &str, folder: &Path) -> PathBuf {
    compile_as(name, folder, &[])
}

fn compile_as(name: &str, folder: &Path, defined: &[&str]) -> PathBuf {
    let linked = stub(folder);
    compile_with(&format!("tests/c/{name}.c"), folder, |compiler| {
        compiler.args(defined.iter().map(|name| format!("-D{name}"))).arg("-L").arg(linked).arg("-lcufile");
    })
}

fn compile_with(source: &str, folder: &Path, libraries: impl FnOnce(&mut Command)) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = folder.join(source.file_stem().unwrap());
    let mut compiler = cc();
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"]);
    compiler.arg(source).arg("-o").arg(&program);
    libraries(&mut compiler);
    succeeded(&compiler.output().expect("a C compiler is there"));
    program
}

/// A program with this library where the loader looks for the original.
fn on_ours(program: &Path, folder: &Path, args: &[&Path]) -> Command {
    let ours = folder.join("ours");
    std::fs::create_dir(&ours).unwrap();
    std::os::unix::fs::symlink(library(), ours.join("libcufile.so.0")).unwrap();
    let mut command = Command::new(program);
    command.args(args).env("LD_LIBRARY_PATH", ours);
    command
}

fn run(program: &Path, folder: &Path, args: &[&Path]) -> Output {
    on_ours(program, folder, args).output().unwrap()
}

fn data(folder: &Path, len: usize) -> PathBuf {
    let path = folder.join("data");
    std::fs::write(&path, bytes(len)).unwrap();
    path
}

#[test]
fn a_program_reads_and_writes_in_every_way() {
    let folder = folder();
    let (program, data) = (compile("transfers", folder.path()), data(folder.path(), 3_000_001));
    let output = run(&program, folder.path(), &[&data, &folder.path().join("copy")]);
    assert_eq!(succeeded(&output), "all there\n");
}

#[test]
fn what_is_wrong_is_refused_with_the_error_of_the_original() {
    let folder = folder();
    let (program, data) = (compile("misuse", folder.path()), data(folder.path(), 10_000));
    assert_eq!(succeeded(&run(&program, folder.path(), &[&data])), "all refused\n");
}

/// Symptom: the C++ example of `KvikIO` fails, as a batch that it has cancelled has four results. Cause: cancelled requests
/// had a result each, where those of the original (measured on 1.15 and 1.20) have none.
#[test]
fn a_cancelled_batch_has_no_results_and_is_used_again() {
    let folder = folder();
    let (program, data) = (compile("cancelled", folder.path()), data(folder.path(), 16 << 20));
    assert_eq!(succeeded(&run(&program, folder.path(), &[&data])), "all cancelled\n");
}

/// Symptom: all statistics were refused, and cuda-python's own tests of them failed. Cause: the structs of older
/// programs are shorter and say neither size nor version, so that these would have been written beyond.
#[test]
fn statistics_are_what_was_done_in_the_structs_of_the_programs_version() {
    let programs: [(&[&str], Option<&str>); 4] = [
        (&[], None),
        (&["BINDINGS"], None),
        (&["BINDINGS", "OLD_STATISTICS"], None),
        (&["OLD_STATISTICS"], Some("1150")),
    ];
    for (defined, asked_for) in programs {
        let folder = folder();
        let (program, data) = (compile_as("statistics", folder.path(), defined), data(folder.path(), 100_000));
        let mut command = on_ours(&program, folder.path(), &[&data]);
        command.arg(asked_for.unwrap_or("1200"));
        command.env_remove("BIFOLIO_CUFILE_VERSION").envs(asked_for.map(|version| ("BIFOLIO_CUFILE_VERSION", version)));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{defined:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(succeeded(&output), "all counted\n");
    }
}

#[test]
fn a_program_that_forks_before_it_begins_is_two_programs() {
    let folder = folder();
    let (program, data) = (compile("forked_early", folder.path()), data(folder.path(), 10_000));
    assert_eq!(succeeded(&run(&program, folder.path(), &[&data])), "both read\n");
}

#[test]
fn sentences_go_to_standard_error_where_that_is_asked_for() {
    let folder = folder();
    let (program, data) = (compile("misuse", folder.path()), data(folder.path(), 10_000));
    let output = on_ours(&program, folder.path(), &[&data]).env("BIFOLIO_CUFILE_LOG", "1").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("bifolio: cuFileHandleRegister: the descriptor 123456 is not open"), "{text}");
    assert!(text.contains("forked"), "{text}");
}

#[test]
fn a_program_uses_memory_and_streams_of_a_gpu() {
    let folder = folder();
    let program = compile("cuda_streams", folder.path());
    let output = run(&program, folder.path(), &[&folder.path().join("data"), &folder.path().join("copy")]);
    let text = succeeded(&output);
    let errors = String::from_utf8_lossy(&output.stderr);
    // What it leaves out is left out here, too.
    text.lines()
        .chain(errors.lines())
        .filter_map(|line| line.strip_prefix("skipped: "))
        .for_each(bifolio_testing::skip);
    assert!(text == "all there\n" || text.starts_with("skipped: "), "{text}");
}

/// It compares what it has read with the file by itself.
#[test]
fn the_benchmark_measures_every_state_size_and_number_of_threads() {
    let folder = folder();
    let program = compile_with("../../examples/c/cufile_bench.c", folder.path(), |compiler| _ = compiler.arg("-ldl"));
    let data = data(folder.path(), 5_000_001);
    let mut command = on_ours(&program, folder.path(), &[&data]);
    command.args(["--device", "host", "--sizes", "64K,3M", "--threads", "1,3", "--repeat", "1"]);
    let output = command.output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("which is not cold") {
        return bifolio_testing::skip(format_args!("the file system of {} keeps all files in memory", data.display()));
    }
    let text = succeeded(&output);
    assert!(text.starts_with("# Bifolio's cuFile 1200, "), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().skip(3).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2 * 2 * 4, "{text}");
    assert!(rows.iter().all(|row| row.len() == 6 && row[3].parse::<f64>().is_ok_and(|rate| rate > 0.0)), "{text}");
    let cached = |row: &&Vec<&str>| row[5].parse::<f64>().unwrap();
    assert!(rows.iter().filter(|row| ["warm", "again"].contains(&row[0])).all(|row| cached(&row) >= 100.0), "{text}");
    assert!(rows.iter().filter(|row| row[0] == "cold").all(|row| cached(&row) <= 2.0), "{text}");
    let refused =
        Command::new(&program).arg(&data).args(["--library", "/nonexistent/libcufile.so.0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/nonexistent"));
}
