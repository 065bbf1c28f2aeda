//! The plugin's structure, as Rust lays it out and as a C compiler does with nbdkit's header.

#[path = "../src/abi.rs"]
#[allow(dead_code, reason = "the numbers are not compared through names")]
mod abi;

use abi::Plugin;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

const HEADER: &str = "/usr/include/nbdkit-plugin.h";

macro_rules! fields {
    ($($field:ident)*) => { [$((stringify!($field), offset_of!(Plugin, $field))),*] };
}

#[test]
fn the_structure_is_laid_out_as_in_nbdkits_header() {
    if !std::path::Path::new(HEADER).exists() {
        return bifolio_testing::require(format_args!("{HEADER} is missing: scripts/setup.sh test installs it"));
    }
    let fields = fields! {
        _struct_size _api_version _thread_model name longname version description load unload config config_complete
        config_help open close get_size can_write can_flush is_rotational can_trim _pread_v1 _pwrite_v1 _flush_v1
        _trim_v1 _zero_v1 errno_is_preserved dump_plugin can_zero can_fua pread pwrite flush trim zero
        magic_config_key can_multi_conn can_extents extents can_cache cache thread_model can_fast_zero preconnect
        get_ready after_fork list_exports default_export export_description cleanup block_size
    };
    let mut source = String::from(
        "#define NBDKIT_API_VERSION 2\n#include <nbdkit-plugin.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         int main(void) {\n",
    );
    for (name, _) in fields {
        writeln!(source, "printf(\"{name} %zu\\n\", offsetof(struct nbdkit_plugin, {name}));").unwrap();
    }
    source.push_str(
        "printf(\"numbers %d %d %d\\n\", NBDKIT_THREAD_MODEL_PARALLEL, NBDKIT_FUA_NATIVE, NBDKIT_FLAG_FUA);\n\
         printf(\"size %zu\\n\", sizeof(struct nbdkit_plugin));\nreturn 0; }\n",
    );
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("offsets.c"), folder.path().join("offsets"));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(compiler).args(["-o"]).args([&program, &file]).status().unwrap();
    assert!(compiled.success());
    let printed = String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap();
    let mut lines = printed.lines();
    for (name, offset) in fields {
        assert_eq!(lines.next().unwrap(), format!("{name} {offset}"));
    }
    assert_eq!(lines.next().unwrap(), format!("numbers {} {} {}", abi::PARALLEL, abi::FUA_NATIVE, abi::FLAG_FUA));
    // A later header's structure is longer.
    let size: usize = lines.next().unwrap().strip_prefix("size ").unwrap().parse().unwrap();
    assert!(size >= size_of::<Plugin>());
}
