//! Files made by the crate `parquet`'s own writer.

mod bombs;
mod damaged;
mod groups;
pub mod written;

use candle_headroom::data::{Dataset, ParquetDataset};
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{Value, json};

use self::written::{Sample, sample, write};
use super::{at, file, is_out_of_range, refused};

#[test]
fn rows_of_all_codecs_come_back_in_any_order() {
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        let file = write(0, &[7, 1, 20], codec);
        let rows = ParquetDataset::<Sample>::builder([file.path()])
            .open()
            .unwrap();
        assert_eq!((rows.len(), rows.cost(3).unwrap()), (28, 1));
        let mut order: Vec<_> = (0..28).collect();
        order.shuffle(&mut StdRng::seed_from_u64(16));
        for index in order {
            assert_eq!(rows.get(index).unwrap(), sample(index as i64), "{codec:?}");
        }
        is_out_of_range(&rows);
    }
}

#[test]
fn files_follow_each_other_and_empty_ones_have_no_rows() {
    let files = [
        write(0, &[3, 2], Compression::SNAPPY),
        write(0, &[], Compression::SNAPPY),
        write(5, &[4], Compression::SNAPPY),
    ];
    let paths = files.each_ref().map(|file| file.path());
    let rows = ParquetDataset::<Sample>::builder(paths).open().unwrap();
    let found: Vec<_> = (0..rows.len())
        .map(|index| rows.get(index).unwrap())
        .collect();
    assert_eq!(found, (0..9).map(sample).collect::<Vec<_>>());
    assert_eq!(rows.name(), format!("{} and 2 more", paths[0].display()));
    let empty = ParquetDataset::<Sample>::builder([paths[1]])
        .open()
        .unwrap();
    assert!(empty.is_empty());
    is_out_of_range(&empty);
}

#[test]
fn a_row_becomes_a_tuple_a_map_or_any_value() {
    let file = write(0, &[4], Compression::SNAPPY);
    let pairs = ParquetDataset::<(f64, Option<String>)>::builder([file.path()])
        .columns(["score", "text"])
        .open()
        .unwrap();
    assert_eq!(pairs.get(3).unwrap(), (1.5, Some("text 3".to_owned())));
    assert_eq!(pairs.get(0).unwrap(), (0., None));

    let values = ParquetDataset::<Value>::builder([file.path()])
        .open()
        .unwrap();
    let expected = json!({
        "id": 2,
        "text": "text 2",
        "image": {"bytes": [2, 2], "path": "2.png"},
        "tokens": [20, 21],
        "counts": {"a": 2, "b": 2},
        "score": 1.0,
        "kind": b"Even", // nothing says that it is text
    });
    assert_eq!(values.get(2).unwrap(), expected);

    #[derive(Deserialize)]
    struct Id(u32);
    #[derive(Deserialize)]
    struct Row {
        id: Id,
    }
    let ids = ParquetDataset::<Row>::builder([file.path()])
        .open()
        .unwrap();
    assert_eq!(ids.get(3).unwrap().id.0, 3);
}

#[test]
fn a_row_that_is_no_such_value_is_an_error_with_its_number() {
    let file = write(0, &[2, 2], Compression::SNAPPY);
    #[derive(Debug, Deserialize)]
    struct Texts {
        #[expect(dead_code, reason = "is only read from the file")]
        text: String,
    }
    let texts = ParquetDataset::<Texts>::builder([file.path()])
        .columns(["text"])
        .open()
        .unwrap();
    assert!(texts.get(1).is_ok());
    let error = refused(&texts, 0);
    let (path, _, problem) = at(&*error);
    assert_eq!(
        (path, problem),
        (
            file.path(),
            "row 0 of the dataset: invalid type: unit value, expected a string"
        )
    );
    let ids = ParquetDataset::<Texts>::builder([file.path()])
        .columns(["id"])
        .open()
        .unwrap();
    assert_eq!(
        at(&*refused(&ids, 3)).2,
        "row 3 of the dataset: missing field `text`"
    );
}

#[test]
fn what_cannot_be_opened_is_refused() {
    let rows = write(0, &[4], Compression::SNAPPY);
    let open = |path: &std::path::Path| {
        ParquetDataset::<Sample>::builder([path])
            .open()
            .unwrap_err()
    };
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    assert_eq!(at(&open(&missing)).0, missing);
    assert_eq!(at(&open(folder.path())).2, "is not a regular file");
    let text = file(b"this is a text and no Parquet file");
    assert!(
        at(&open(text.path())).2.contains("Invalid Parquet file"),
        "{}",
        open(text.path())
    );
    let empty = file(b"");
    assert_eq!(at(&open(empty.path())).0, empty.path());
    let column = ParquetDataset::<Sample>::builder([rows.path()])
        .columns(["id", "label"])
        .open()
        .unwrap_err();
    assert_eq!(
        at(&column).2,
        "has no column `label`; it has id, text, image, tokens, counts, score, kind"
    );
    let is_setting = |error: candle_headroom::Error| {
        error.is_data()
            && error
                .to_string()
                .contains("at least one file and one column")
    };
    let none: [&str; 0] = [];
    assert!(is_setting(
        ParquetDataset::<Sample>::builder(none).open().unwrap_err()
    ));
    assert!(is_setting(
        ParquetDataset::<Sample>::builder([rows.path()])
            .columns(none)
            .open()
            .unwrap_err()
    ));
}
