//! With the feature `dry-run`, builds the simulated CUDA driver (`crates/simulated-cuda`) and embeds its libraries in the program.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The driver's package, beside this one.
const DRIVER: &str = "../simulated-cuda";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut files = Files::default();
    let target = ["OS", "ARCH"].map(|part| env::var(format!("CARGO_CFG_TARGET_{part}")));
    let target = target.map(Result::unwrap_or_default);
    if env::var_os("CARGO_FEATURE_DRY_RUN").is_some() && target == ["linux", "x86_64"] {
        let libraries = out.join("libraries");
        build(&out, &libraries);
        files.add(&libraries, &libraries);
    }
    fs::write(out.join("libraries.rs"), files.source()).expect("OUT_DIR is writable");
}

fn build(out: &Path, libraries: &Path) {
    for source in [
        "Cargo.toml",
        "Cargo.lock",
        "build.rs",
        "build.sh",
        "src",
        "symbols.txt",
    ] {
        println!("cargo:rerun-if-changed={DRIVER}/{source}");
    }
    let script = Path::new(DRIVER).join("build.sh");
    let mut build = Command::new("bash");
    build.arg(&script).arg(libraries);
    build.env("CARGO_TARGET_DIR", out.join("driver"));
    // What cargo and clippy set for this package is not for the driver.
    for variable in [
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_ENCODED_RUSTFLAGS",
        "TARGET",
        "CARGO_BUILD_TARGET",
    ] {
        build.env_remove(variable);
    }
    let done = build.status();
    assert!(
        done.is_ok_and(|status| status.success()),
        "the simulated driver was not built: the feature `dry-run` needs {}, bash, cargo, cc and nm",
        script.display()
    );
}

/// The libraries, and the links between them.
#[derive(Default)]
struct Files {
    files: Vec<(String, PathBuf)>,
    links: Vec<(String, String)>,
    hash: DefaultHasher,
}

impl Files {
    fn add(&mut self, root: &Path, folder: &Path) {
        let entries = fs::read_dir(folder).expect("build.sh has made the folder");
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("it is readable").path())
            .collect();
        paths.sort();
        for path in paths {
            let name = path
                .strip_prefix(root)
                .expect("it lies in the folder")
                .display()
                .to_string();
            if let Ok(to) = fs::read_link(&path) {
                (&name, &to).hash(&mut self.hash);
                self.links.push((name, to.display().to_string()));
            } else if path.is_dir() {
                self.add(root, &path);
            } else {
                let bytes = fs::read(&path).expect("it is readable");
                (&name, bytes).hash(&mut self.hash);
                self.files.push((name, path));
            }
        }
    }

    fn source(&self) -> String {
        let files = self.files.iter();
        let files =
            files.map(|(name, path)| format!("    ({name:?}, include_bytes!({path:?})),\n"));
        let links = self.links.iter();
        let links = links.map(|(name, to)| format!("    ({name:?}, {to:?}),\n"));
        format!(
            "pub const FILES: &[(&str, &[u8])] = &[\n{}];\npub const LINKS: &[(&str, &str)] = &[\n{}];\npub const HASH: &str = \"{:016x}\";\n",
            files.collect::<String>(),
            links.collect::<String>(),
            self.hash.finish()
        )
    }
}
