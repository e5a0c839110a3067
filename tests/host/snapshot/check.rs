//! What a snapshot holds, read by Python's unpickler and checked by the viewer's rules.

use std::collections::BTreeMap;
use std::process::Command;

use candle_headroom::layers::Snapshot;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub struct Checked {
    pub counts: BTreeMap<String, u64>,
    /// Live bytes before the first event, after the last one, and the most.
    pub first: u64,
    pub last: u64,
    pub peak: u64,
    pub freed_from_before: u64,
    /// Sizes of the blocks that were allocated and not freed.
    pub live: Vec<u64>,
    /// Allocated bytes by category and by path.
    pub by_category: BTreeMap<String, u64>,
    pub paths: BTreeMap<String, u64>,
    pub threads: usize,
    /// Of each exhaustion: requested bytes, free bytes, path.
    pub ooms: Vec<(u64, u64, String)>,
}

pub fn check(snapshot: &Snapshot) -> Checked {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory_snapshot.pickle");
    snapshot.save(&path).unwrap();
    let output = Command::new("python3")
        .args(["-c", include_str!("check.py")])
        .arg(&path)
        .output()
        .expect("python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}
