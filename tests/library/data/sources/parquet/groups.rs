//! Row groups are decoded once, and those used last are kept.

use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, ParquetDataset};
use parquet::basic::Compression;
use tempfile::NamedTempFile;

use super::written::{Sample, sample, write};
use crate::data::sources::{at, refused, shorten};

/// Three groups of ten rows.
fn open(cache: ByteSize) -> (NamedTempFile, ParquetDataset<Sample>) {
    let file = write(0, &[10, 10, 10], Compression::SNAPPY);
    let rows = ParquetDataset::builder([file.path()])
        .cache(cache)
        .open()
        .unwrap();
    (file, rows)
}

#[test]
fn rows_of_a_decoded_group_need_no_file() {
    let (file, rows) = open(ByteSize::mib(1));
    rows.get(3).unwrap();
    rows.get(25).unwrap();
    assert_eq!(rows.blocks(), [10, 20, 30]);
    shorten(&file, 0);
    for index in (0..10).chain(20..30) {
        assert_eq!(rows.get(index).unwrap(), sample(index as i64));
    }
    let error = refused(&rows, 15);
    let (path, offset, problem) = at(&*error);
    assert_eq!(path, file.path());
    assert!(offset.is_some_and(|offset| offset > 0), "{problem}");
}

#[test]
fn the_group_used_last_is_kept_whatever_its_size() {
    let (file, rows) = open(ByteSize(1));
    rows.get(3).unwrap();
    rows.get(13).unwrap();
    shorten(&file, 0);
    assert_eq!(rows.get(14).unwrap(), sample(14));
    let _ = refused(&rows, 3);
    // The failed attempt did not take the place of the group.
    assert_eq!(rows.get(15).unwrap(), sample(15));
}

#[test]
fn of_too_many_groups_the_one_not_used_for_longest_goes() {
    // Room for two groups of ten rows, but not for three: a row counts as 700 to 1,000 bytes.
    let (file, rows) = open(ByteSize(20_000));
    for index in [0, 10, 1, 20] {
        rows.get(index).unwrap();
    }
    shorten(&file, 0);
    rows.get(9).unwrap();
    rows.get(29).unwrap();
    let _ = refused(&rows, 19);
}

#[test]
fn threads_read_the_same_rows_as_one() {
    let (_file, rows) = open(ByteSize(1));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let rows = &rows;
            scope.spawn(move || {
                for turn in 0..200 {
                    let index = (7 * turn + 11 * thread) % 30;
                    assert_eq!(rows.get(index).unwrap(), sample(index as i64));
                }
            });
        }
    });
}
