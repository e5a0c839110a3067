use candle_headroom::data::ParquetDataset;
use parquet::basic::Compression;

use super::written::{Sample, write};
use crate::data::sources::damage::damage;
use crate::data::sources::{at, refused, shorten};

#[test]
fn a_truncated_or_changed_file_does_not_panic() {
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        let file = write(0, &[5, 3], codec);
        let content = std::fs::read(file.path()).unwrap();
        let [beginnings, changed] = damage(&content, |path| {
            ParquetDataset::<Sample>::builder([path]).open()
        });
        // The metadata is at the end.
        assert_eq!(beginnings, 0);
        assert!((1..500).contains(&changed), "{changed}");
    }
}

#[test]
fn a_file_shortened_while_it_is_open_is_an_error_and_no_crash() {
    let file = write(0, &[2_000], Compression::UNCOMPRESSED);
    let rows = ParquetDataset::<Sample>::builder([file.path()])
        .open()
        .unwrap();
    shorten(&file, 4_096);
    let error = refused(&rows, 1_999);
    assert_eq!(at(&*error).0, file.path());
}

#[test]
fn rows_that_the_columns_do_not_have_are_refused() {
    // Thrift writes the numbers of rows as zigzag varints; 77 rows are 0x9A 0x01, in the file and in its row group.
    let file = write(0, &[77], Compression::UNCOMPRESSED);
    let mut content = std::fs::read(file.path()).unwrap();
    let metadata = content.len()
        - 8
        - u32::from_le_bytes(content[content.len() - 8..][..4].try_into().unwrap()) as usize;
    let places: Vec<_> = (metadata..content.len())
        .filter(|at| content[*at..].starts_with(&[0x9A, 0x01]))
        .collect();
    assert!(places.len() > 8, "{places:?}");
    let mut refused_rows = 0;
    for at in places {
        content[at] = 0x9C;
        std::fs::write(file.path(), &content).unwrap();
        let opened = ParquetDataset::<Sample>::builder([file.path()]).open();
        refused_rows +=
            usize::from(opened.is_err_and(|error| error.to_string().contains("states")));
        content[at] = 0x9A;
    }
    // Seven columns without lists, two within them, and the row group's own number; the file's total is not used.
    assert!(refused_rows >= 7, "{refused_rows}");
}
