//! The datasets in the box, on real files.

mod changed;
mod damage;
#[cfg(feature = "image")]
mod images;
mod json;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
mod safetensors;
mod tensors;
mod tokens;

use std::error::Error as StdError;
use std::io::Write;
use std::path::Path;

use candle_headroom::data::Dataset;
use candle_headroom::error::{BoxedError, DataError};
use tempfile::NamedTempFile;

/// A file with some content.
fn file(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(content).expect("content");
    file
}

/// Cuts a file that is open elsewhere.
fn shorten(file: &NamedTempFile, len: u64) {
    // By its name: a writer may have put another file in its place.
    let file = std::fs::OpenOptions::new().write(true).open(file.path());
    file.expect("a file").set_len(len).expect("a shorter file");
}

/// Writes a file that is open elsewhere anew, at a later time than a clock of 10 ms can show.
fn rewrite(path: &Path, content: &[u8]) {
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(path, content).expect("a file");
}

/// The path, offset and problem of an error of a file.
#[track_caller]
fn at<'e>(error: &'e (dyn StdError + 'static)) -> (&'e Path, Option<u64>, &'e str) {
    let inner = match error.downcast_ref() {
        Some(candle_headroom::Error::Data(data)) => &**data,
        _ => error.downcast_ref().expect("an error of data"),
    };
    match inner {
        DataError::File {
            path,
            offset,
            problem,
            ..
        } => (path, *offset, problem),
        other => panic!("not of a file: {other}"),
    }
}

/// The error of a sample.
#[track_caller]
fn refused<D: Dataset>(dataset: &D, index: usize) -> BoxedError {
    match dataset.get(index) {
        Ok(_) => panic!("sample {index} was read"),
        Err(error) => error,
    }
}

#[track_caller]
fn is_out_of_range<D: Dataset>(dataset: &D) {
    for index in [dataset.len(), usize::MAX] {
        let error = refused(dataset, index);
        let end = format!(" has {} samples, not one at {index}", dataset.len());
        let own = error.downcast_ref::<candle_headroom::Error>();
        assert!(own.is_some_and(candle_headroom::Error::is_data), "{error}");
        assert!(error.to_string().ends_with(&end), "{error}");
    }
}
