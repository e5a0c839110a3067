//! Rows with every kind of column, and the file that holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde::Deserialize;
use tempfile::NamedTempFile;

const SCHEMA: &str = "
    message rows {
        required int64 id;
        optional binary text (UTF8);
        required group image {
            required binary bytes;
            optional binary path (UTF8);
        }
        optional group tokens (LIST) {
            repeated group list {
                optional int32 element;
            }
        }
        required group counts (MAP) {
            repeated group key_value {
                required binary key (UTF8);
                required int64 value;
            }
        }
        required float score;
        required binary kind;
    }";

#[derive(Debug, Deserialize, PartialEq)]
pub struct Sample {
    pub id: i64,
    pub text: Option<String>,
    pub image: Image,
    pub tokens: Option<Vec<Option<i32>>>,
    pub counts: BTreeMap<String, u8>,
    pub score: f32,
    /// A string that the file does not mark as one.
    pub kind: String,
}

#[derive(Debug, Deserialize, PartialEq)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub path: Option<String>,
}

/// The row with a number.
pub fn sample(id: i64) -> Sample {
    let token = |at: i64| ((id + at) % 6 != 0).then_some((10 * id + at) as i32);
    Sample {
        id,
        text: (id % 5 != 0).then(|| format!("text {id}")),
        image: Image {
            bytes: vec![id as u8; (id % 4) as usize],
            path: (id % 3 != 0).then(|| format!("{id}.png")),
        },
        tokens: (id % 7 != 0).then(|| (0..id % 4).map(token).collect()),
        counts: ["a", "b"]
            .into_iter()
            .take((id % 3) as usize)
            .map(|key| (key.to_owned(), id as u8))
            .collect(),
        score: id as f32 / 2.,
        kind: if id % 2 == 0 { "Even" } else { "Odd" }.to_owned(),
    }
}

type Group<'a> = SerializedRowGroupWriter<'a, std::fs::File>;

fn column<T: DataType>(
    group: &mut Group<'_>,
    values: &[T::T],
    definitions: Option<&[i16]>,
    repetitions: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().expect("a column");
    column
        .typed::<T>()
        .write_batch(values, definitions, repetitions)
        .unwrap();
    column.close().unwrap();
}

/// A column of values or nulls.
fn optional(group: &mut Group<'_>, values: impl Iterator<Item = Option<String>>) {
    let values: Vec<_> = values.collect();
    let definitions: Vec<_> = values
        .iter()
        .map(|value| i16::from(value.is_some()))
        .collect();
    let values: Vec<_> = values
        .iter()
        .flatten()
        .map(|value| ByteArray::from(value.as_str()))
        .collect();
    column::<ByteArrayType>(group, &values, Some(&definitions), None);
}

/// Definition and repetition level of each place of a list: of its values, or of the list itself if there are none.
fn levels(lens: impl Iterator<Item = Option<Vec<i16>>>, empty: i16) -> (Vec<i16>, Vec<i16>) {
    let mut levels = Vec::new();
    for list in lens {
        match list.as_deref() {
            None => levels.push((0, 0)),
            Some([]) => levels.push((empty, 0)),
            Some(list) => levels.extend(
                list.iter()
                    .enumerate()
                    .map(|(at, level)| (*level, i16::from(at > 0))),
            ),
        }
    }
    levels.into_iter().unzip()
}

/// A file of row groups, whose rows have the numbers from `first` on.
pub fn write(first: i64, groups: &[usize], codec: Compression) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let properties = WriterProperties::builder().set_compression(codec).build();
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer =
        SerializedFileWriter::new(file.reopen().unwrap(), schema, Arc::new(properties)).unwrap();
    let mut id = first;
    for rows in groups {
        let samples: Vec<_> = (id..id + *rows as i64).map(sample).collect();
        id += *rows as i64;
        let mut group = writer.next_row_group().unwrap();
        let all = || samples.iter();
        let array = |text: &str| ByteArray::from(text);
        column::<Int64Type>(
            &mut group,
            &all().map(|row| row.id).collect::<Vec<_>>(),
            None,
            None,
        );
        optional(&mut group, all().map(|row| row.text.clone()));
        let bytes: Vec<_> = all()
            .map(|row| ByteArray::from(row.image.bytes.clone()))
            .collect();
        column::<ByteArrayType>(&mut group, &bytes, None, None);
        optional(&mut group, all().map(|row| row.image.path.clone()));
        let lists = all().map(|row| {
            row.tokens.as_ref().map(|list| {
                list.iter()
                    .map(|token| 2 + i16::from(token.is_some()))
                    .collect()
            })
        });
        let (definitions, repetitions) = levels(lists, 1);
        let tokens: Vec<_> = all()
            .flat_map(|row| row.tokens.iter().flatten().flatten().copied())
            .collect();
        column::<Int32Type>(&mut group, &tokens, Some(&definitions), Some(&repetitions));
        let (definitions, repetitions) =
            levels(all().map(|row| Some(vec![1; row.counts.len()])), 0);
        let keys: Vec<_> = all()
            .flat_map(|row| row.counts.keys().map(|key| array(key)))
            .collect();
        column::<ByteArrayType>(&mut group, &keys, Some(&definitions), Some(&repetitions));
        let counts: Vec<_> = all()
            .flat_map(|row| row.counts.values().map(|count| i64::from(*count)))
            .collect();
        column::<Int64Type>(&mut group, &counts, Some(&definitions), Some(&repetitions));
        column::<FloatType>(
            &mut group,
            &all().map(|row| row.score).collect::<Vec<_>>(),
            None,
            None,
        );
        column::<ByteArrayType>(
            &mut group,
            &all().map(|row| array(&row.kind)).collect::<Vec<_>>(),
            None,
            None,
        );
        group.close().unwrap();
    }
    writer.close().unwrap();
    file
}
