//! Writes an entry point for every name in `symbols.txt` that the sources do not define, and sets the library's soname.

use std::fs;
use std::path::{Path, PathBuf};

/// All text of the sources below a folder.
fn sources(folder: &Path, text: &mut String) {
    let entries = fs::read_dir(folder).expect("the sources are readable");
    for path in entries.map(|entry| entry.expect("the sources are readable").path()) {
        if path.is_dir() {
            sources(&path, text);
        } else {
            text.push_str(&fs::read_to_string(&path).expect("sources are text"));
        }
    }
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    let mut text = String::new();
    sources(Path::new("src"), &mut text);
    let symbols = fs::read_to_string("symbols.txt").expect("symbols.txt is there");
    let mut stubs = String::new();
    let names = symbols
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    for name in names.filter(|name| !text.contains(&format!("fn {name}("))) {
        stubs.push_str(&format!(
            "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() {{\n    crate::status::not_modelled({name:?})\n}}\n"
        ));
    }
    let to = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("not_modelled.rs");
    fs::write(to, stubs).expect("OUT_DIR is writable");
}
