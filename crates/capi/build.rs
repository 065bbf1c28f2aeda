//! The name under which programs that are linked with the library look for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbifolio.so.0");
}
