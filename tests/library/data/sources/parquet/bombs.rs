//! Small files that become large: refused before they are decoded.

use std::fs::File;
use std::sync::Arc;

use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, ParquetDataset};
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::data::sources::{at, refused};

#[derive(Debug, Deserialize, PartialEq)]
struct Row {
    x: Option<i32>,
}

#[derive(Debug, Deserialize)]
struct Text {
    x: String,
}

fn writer(file: &NamedTempFile, schema: &str, codec: Compression) -> SerializedFileWriter<File> {
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_dictionary_enabled(false)
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    SerializedFileWriter::new(file.reopen().unwrap(), schema, Arc::new(properties)).unwrap()
}

/// A column of nulls, which takes a few bytes whatever its length.
fn nulls(rows: usize) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let mut writer = writer(
        &file,
        "message m { optional int32 x; }",
        Compression::UNCOMPRESSED,
    );
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let levels = vec![0i16; rows.min(1 << 20)];
    for start in (0..rows).step_by(levels.len()) {
        let levels = &levels[..levels.len().min(rows - start)];
        column
            .typed::<Int32Type>()
            .write_batch(&[], Some(levels), None)
            .unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    file
}

#[test]
fn many_nulls_in_few_bytes_are_refused() {
    let few = nulls(1_000);
    let open = |file: &NamedTempFile, most: Option<u64>| {
        let builder = ParquetDataset::<Row>::builder([file.path()]);
        let builder = match most {
            Some(most) => builder.max_row_group(ByteSize(most)),
            None => builder,
        };
        builder.open().unwrap()
    };
    assert_eq!(open(&few, None).get(999).unwrap(), Row { x: None });
    let error = refused(&open(&few, Some(50_000)), 0);
    let problem = at(&*error).2;
    assert!(
        problem.contains("row group 0") && problem.contains("`max_row_group`"),
        "{problem}"
    );
    // A hundred million rows in less than a MB, with the limit by default.
    let many = nulls(100_000_000);
    assert!(many.path().metadata().unwrap().len() < 1 << 20);
    let error = refused(&open(&many, None), 0);
    assert!(at(&*error).2.contains("100000000 rows"), "{error}");
}

/// Lists that continue on further pages, whose headers are looked at before the pages are read.
#[test]
fn lists_on_many_pages_are_read() {
    const ROWS: usize = 2_000;
    let file = NamedTempFile::new().unwrap();
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .build();
    let schema = Arc::new(parse_message_type("message m { repeated int32 x; }").unwrap());
    let mut writer =
        SerializedFileWriter::new(file.reopen().unwrap(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<i32> = (0..3 * ROWS as i32).collect();
    let repetitions: Vec<i16> = values.iter().map(|at| i16::from(at % 3 > 0)).collect();
    let definitions = vec![1; values.len()];
    let column_writer = column.typed::<Int32Type>();
    column_writer
        .write_batch(&values, Some(&definitions), Some(&repetitions))
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    #[derive(Deserialize)]
    struct List {
        x: Vec<i32>,
    }
    let lists = ParquetDataset::<List>::builder([file.path()])
        .open()
        .unwrap();
    for at in 0..ROWS {
        let first = 3 * at as i32;
        assert_eq!(lists.get(at).unwrap().x, [first, first + 1, first + 2]);
    }
}

/// A page that is larger than its column says.
#[test]
fn a_page_that_grows_beyond_what_its_column_states_is_refused() {
    const BYTES: usize = 64 << 20;
    let schema = "message m { required binary x (UTF8); }";
    for codec in [Compression::ZSTD(ZstdLevel::default()), Compression::SNAPPY] {
        let honest = NamedTempFile::new().unwrap();
        let mut all = writer(&honest, schema, codec);
        let mut group = all.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let text = ByteArray::from(vec![b'a'; BYTES]);
        column
            .typed::<ByteArrayType>()
            .write_batch(&[text], None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        all.close().unwrap();
        let texts = ParquetDataset::<Text>::builder([honest.path()])
            .open()
            .unwrap();
        assert_eq!(texts.get(0).unwrap().x.len(), BYTES);

        let reader = SerializedFileReader::new(honest.reopen().unwrap()).unwrap();
        let metadata = reader.metadata().row_group(0).column(0).clone();
        let lying = metadata
            .into_builder()
            .set_total_uncompressed_size(100)
            .build()
            .unwrap();
        let file = NamedTempFile::new().unwrap();
        let mut all = writer(&file, schema, codec);
        let mut group = all.next_row_group().unwrap();
        let close = ColumnCloseResult {
            bytes_written: lying.compressed_size() as u64,
            rows_written: 1,
            metadata: lying,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        group
            .append_column(&honest.reopen().unwrap(), close)
            .unwrap();
        group.close().unwrap();
        all.close().unwrap();
        let texts = ParquetDataset::<Text>::builder([file.path()])
            .open()
            .unwrap();
        let error = refused(&texts, 0);
        assert!(at(&*error).2.contains("page"), "{error}");
        assert!(at(&*error).2.contains("states"), "{error}");
    }
}
