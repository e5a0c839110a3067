//! Files that are written while they are open: an error that names the file and what changed, never a signal or wrong samples.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Dataset, JsonLines, Lines, SafetensorsDataset, Tokens, stack_tokens};
use serde_json::Value;

#[cfg(feature = "parquet")]
use super::{at, refused};
use super::{file, rewrite};

/// Reads a sample, writes the file anew and reads again.
#[track_caller]
fn is_noticed<D: Dataset>(
    content: &[u8],
    open: impl Fn(&Path) -> candle_headroom::Result<D>,
    read: impl Fn(&D) -> Option<String>,
) {
    let file = file(content);
    let dataset = open(file.path()).unwrap();
    assert_eq!(read(&dataset), None);
    is_not_mapped(file.path());
    // Equal in length and even in content: nobody can tell without reading all of it.
    rewrite(file.path(), content);
    let problem = read(&dataset).expect("it was written");
    assert!(problem.contains(file.path().to_str().unwrap()), "{problem}");
    assert!(
        problem.contains("changed while it was open: it was written"),
        "{problem}"
    );
    assert!(problem.contains("open it again"), "{problem}");
    rewrite(file.path(), &[content, content].concat());
    let problem = read(&dataset).expect("it was written");
    let lengths = format!("it has {} bytes, had {}", 2 * content.len(), content.len());
    assert!(problem.contains(&lengths), "{problem}");
    let dataset = open(file.path()).ok();
    assert!(
        dataset.is_none_or(|dataset| read(&dataset).is_none()),
        "opened again"
    );
}

fn is_not_mapped(path: &Path) {
    if let Ok(maps) = std::fs::read_to_string("/proc/self/maps") {
        assert!(!maps.contains(path.to_str().unwrap()), "mapped");
    }
}

fn first<D: Dataset>(dataset: &D) -> Option<String> {
    dataset.get(0).err().map(|error| error.to_string())
}

#[test]
fn a_file_written_anew_is_noticed_by_every_dataset() {
    is_noticed(b"one\ntwo\n", |path| Lines::open(path), first);
    is_noticed(b"[1]\n[2]\n", |path| JsonLines::<Value>::open(path), first);
    let tokens = [7; 40_000];
    let open = |path: &Path| Tokens::builder([path]).window(100).open();
    is_noticed(&tokens, open, |tokens: &Tokens| {
        let window = tokens.get(3).unwrap();
        window.to_vec().err().map(|error| error.to_string())
    });
    is_noticed(&tokens, open, |tokens: &Tokens| {
        let windows = [0, 7, 3].map(|index| tokens.get(index).unwrap());
        let stacked = stack_tokens(windows.to_vec());
        stacked.err().map(|error| error.to_string())
    });
    let whole = file(b"");
    let x = Tensor::zeros((10, 3), DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("x", x)]), whole.path()).unwrap();
    let content = std::fs::read(whole.path()).unwrap();
    is_noticed(
        &content,
        |path| SafetensorsDataset::builder(path).open(),
        first,
    );
}

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_file_written_anew_is_noticed() {
    use candle_headroom::data::ParquetDataset;
    use parquet::basic::Compression;

    use super::parquet::written::{Sample, write};

    let content = std::fs::read(write(0, &[3], Compression::SNAPPY).path()).unwrap();
    let file = file(&content);
    let rows = ParquetDataset::<Sample>::builder([file.path()])
        .open()
        .unwrap();
    rewrite(file.path(), &content);
    let error = refused(&rows, 0);
    assert_eq!(at(&*error).0, file.path());
    assert!(
        at(&*error).2.contains("changed while it was open"),
        "{error}"
    );
}

/// Another thread cuts and writes the file all the time, which ends a process that has mapped it by SIGBUS.
#[test]
fn a_file_that_is_cut_and_written_all_the_time_ends_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for token in (0..=255).cycle() {
                if is_over.load(Relaxed) {
                    break;
                }
                std::fs::write(&path, vec![token; 1 << 20]).unwrap();
            }
        });
        let (mut refused, mut stacked) = (0, 0);
        let began = std::time::Instant::now();
        while began.elapsed().as_secs() < 3 {
            let Ok(tokens) = Tokens::builder([&path]).window(1_024).open() else {
                continue;
            };
            let windows = || (0..tokens.len()).map(|index| tokens.get(index).unwrap());
            while stack_tokens(windows().collect()).is_ok() {
                stacked += 1;
            }
            refused += 1;
        }
        is_over.store(true, Relaxed);
        assert!(refused > 5, "{refused} refused, {stacked} read");
    });
}
