//! An error shows its cause in its text or returns it as its source, never both.

use std::io;
use std::time::Duration;

use candle_core::{Device, Tensor};
use candle_headroom::checkpoint::Checkpoints;
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::{CheckpointError, DataError, UpdateInterrupted, WindowLost};
use candle_headroom::memory::Limit;
use candle_headroom::{DeviceMemory, Monitor, Timeline};

use super::*;

/// A file where a folder is needed.
fn checkpoint() -> Error {
    let file = tempfile::NamedTempFile::new().unwrap();
    let opened = Checkpoints::builder(file.path().join("run")).open();
    opened.map(drop).unwrap_err()
}

/// A dataset whose samples are all damaged.
#[derive(Debug)]
struct Damaged;

impl Dataset for Damaged {
    type Sample = u32;

    fn len(&self) -> usize {
        8
    }

    fn get(&self, _: usize) -> Result<u32, candle_headroom::error::BoxedError> {
        Err(Box::new(Corrupt(3)))
    }
}

fn data(skips: usize) -> Error {
    let collate = |samples: Vec<u32>| Ok(Tensor::new(samples, &Device::Cpu)?);
    let loader = Loader::builder(Damaged, collate)
        .batch(2)
        .skip_failures(skips);
    let mut loader = loader.build().unwrap();
    loader.next().unwrap().map(drop).unwrap_err()
}

fn file() -> Error {
    let none = candle_headroom::data::Lines::open("/no/such/file");
    none.map(drop).unwrap_err()
}

/// Nobody listens on the port.
fn group() -> Error {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let variables = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", port.as_str()),
    ];
    let builder = Group::builder().timeout(Duration::from_millis(500));
    builder.variables(variables).open().map(drop).unwrap_err()
}

fn output() -> Error {
    Timeline::new()
        .save_page("a run", "/no/such/folder/page")
        .unwrap_err()
}

fn memory() -> Error {
    let opened = DeviceMemory::host().limit(Limit::Fraction(2.)).open();
    opened.map(drop).unwrap_err()
}

fn monitor() -> Error {
    let builder = Monitor::builder().interval(Duration::ZERO);
    builder.start().map(drop).unwrap_err()
}

#[test]
fn no_text_holds_the_text_of_a_source() {
    let interrupted = UpdateInterrupted::new(Error::external(Corrupt(3)));
    let lost = WindowLost::new(2, Error::external(Corrupt(3)));
    let fault = Error::from(cuda("DriverError(CUDA_ERROR_ASSERT, \"…\")"));
    // The error, and what its chain of texts has to say once.
    let errors: Vec<(&str, Error, &str)> = vec![
        ("exhausted", oom().into(), "CUDA_ERROR_OUT_OF_MEMORY"),
        ("without a source", detailed(), "pinned host memory"),
        ("fault", fault, "DriverError"),
        ("candle", CandleError::UnwrapNone.into(), "unwrap none"),
        (
            "io",
            CandleError::from(io::Error::other("no disk")).into(),
            "no disk",
        ),
        (
            "external",
            Error::external(Corrupt(3)),
            "sample 3 is corrupt",
        ),
        ("window lost", lost.into(), "sample 3 is corrupt"),
        ("interrupted", interrupted.into(), "sample 3 is corrupt"),
        ("checkpoint", checkpoint(), "Not a directory"),
        ("sample", data(0), "sample 3 is corrupt"),
        ("skipped", data(1), "sample 3 is corrupt"),
        ("file", file(), "No such file"),
        ("group", group(), "127.0.0.1"),
        ("output", output(), "No such file"),
        ("memory", memory(), "only the tracking allocator"),
        ("monitor", monitor(), "`interval` must be"),
    ];
    for (name, error, once) in errors {
        let mut each: Option<&(dyn StdError + 'static)> = Some(&error);
        while let Some(error) = each {
            each = error.source();
            let (text, source) = (error.to_string(), each.map(ToString::to_string));
            let is_in_it = source.as_ref().is_some_and(|source| text.contains(source));
            assert!(!is_in_it, "{name}: {text} / {source:?}");
        }
        let chain = format!("{:#}", anyhow::Error::from(error));
        assert_eq!(chain.matches(once).count(), 1, "{name}: {chain}");
    }
}

/// A cause that is in the text is found by its type all the same.
#[test]
fn causes_are_found_by_type_wherever_they_are_shown() {
    for error in [data(0), data(1)] {
        assert!(error.is_data(), "{error}");
        assert_eq!(error.downcast_ref(), Some(&Corrupt(3)), "{error}");
        assert!(error.downcast_ref::<DataError>().is_some());
    }
    let error = checkpoint();
    assert!(error.downcast_ref::<CheckpointError>().is_some(), "{error}");
    let reason = error
        .downcast_ref::<io::Error>()
        .expect("the system's error");
    assert_eq!(reason.kind(), io::ErrorKind::NotADirectory);
    assert!(file().downcast_ref::<io::Error>().is_some());
}
