//! Parquet files.

use std::fs::File;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::{Files, base, command, succeed};

fn write(files: &Files, name: &str, columns: [(&str, &[&str]); 2]) -> String {
    let path = files.path(name);
    let fields = columns.map(|(name, _)| format!("required binary {name} (UTF8);"));
    let schema = parse_message_type(&format!("message m {{ {} }}", fields.concat())).unwrap();
    let file = File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, values) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = values.iter().map(|text| (*text).into()).collect();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, None, None)
            .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn columns_are_prompts_and_completions() {
    let files = Files::new();
    let data = write(
        &files,
        "train.parquet",
        [
            ("prompt", &["one ", "two ", "three "]),
            ("completion", &["uno", "due", "tre"]),
        ],
    );
    let output = files.path("out");
    let said = succeed(&[
        "--model",
        base(),
        "--output",
        &output,
        "--held-out",
        "0",
        "--sample",
        "0",
        &data,
    ]);
    assert!(said.contains("data: 3 samples"), "{said}");

    let data = write(
        &files,
        "wrong.parquet",
        [("prompt", &["one "]), ("answer", &["uno"])],
    );
    let output = command(&["--model", base(), "--output", &files.path("no"), &data])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("wrong.parquet: row 0 of the dataset: there must be `messages`, `prompt`"),
        "{stderr}"
    );
}
