//! `include/bifolio.h` is what the source says. `BIFOLIO_BLESS=1` writes it.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        include_guard: Some("BIFOLIO_H".to_owned()),
        header: Some(
            "/* Bifolio: files in GPU memory, by the best path for their cache state. Generated from crates/capi. */"
                .to_owned(),
        ),
        trailer: None,
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::C99,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        enumeration: cbindgen::EnumConfig { prefix_with_name: false, ..Default::default() },
        style: cbindgen::Style::Both,
        line_length: 110,
        ..Default::default()
    };
    let mut bytes = vec![];
    // The modules follow from it.
    let builder = cbindgen::Builder::new().with_config(config).with_src(crate_folder.join("src/lib.rs"));
    builder.generate().expect("the source can be made a header").write(&mut bytes);
    let generated = String::from_utf8(bytes).unwrap();
    let generated = for_readers_of_c(&generated);
    let kept = crate_folder.join("include/bifolio.h");
    if std::env::var_os("BIFOLIO_BLESS").is_some() {
        std::fs::write(&kept, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(kept).unwrap_or_default();
    assert!(kept == generated, "crates/capi/include/bifolio.h is not that of the source: set BIFOLIO_BLESS=1 once");
}

/// Without the marks of Rust's documentation: what callers must see to follows "Requires:".
fn for_readers_of_c(text: &str) -> String {
    let mut out = String::new();
    let mut requires = false;
    for line in text.lines() {
        if line.trim() == "// # Safety" {
            requires = true;
            continue;
        }
        let mut line = line.replace("[`", "").replace("`]", "");
        while let Some(start) = line.find("(crate::") {
            let end = line[start..].find(')').map_or(line.len(), |end| start + end + 1);
            line.replace_range(start..end, "");
        }
        let line = line.replace('`', "");
        let marked = if std::mem::take(&mut requires) { line.replacen("// ", "// Requires: ", 1) } else { line };
        out.push_str(&marked);
        out.push('\n');
    }
    out
}
