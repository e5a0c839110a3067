use std::sync::Arc;

use parquet::record::{Field, Row};

/// The decoded rows of a row group.
#[derive(Debug)]
pub(super) struct Rows {
    pub names: Arc<[String]>,
    fields: Vec<Box<[Field]>>,
}

impl Rows {
    pub fn new(names: Arc<[String]>, rows: Vec<Row>) -> Self {
        // The names are the same in every row.
        let fields = |row: Row| {
            row.into_columns()
                .into_iter()
                .map(|(_, field)| field)
                .collect()
        };
        let fields = rows.into_iter().map(fields).collect();
        Self { names, fields }
    }

    pub fn row(&self, index: usize) -> Option<&[Field]> {
        self.fields.get(index).map(AsRef::as_ref)
    }

    /// About the memory that they take.
    pub fn bytes(&self) -> usize {
        let rows = self.fields.iter().map(|row| size_of_val(row) + fields(row));
        rows.sum()
    }
}

fn fields<'f>(fields: impl IntoIterator<Item = &'f Field>) -> usize {
    fields.into_iter().map(bytes).sum()
}

fn bytes(field: &Field) -> usize {
    let heap = match field {
        Field::Str(text) => text.len(),
        Field::Bytes(bytes) => bytes.len(),
        Field::Group(row) => row
            .get_column_iter()
            .map(|(name, field)| size_of::<String>() + name.len() + bytes(field))
            .sum(),
        Field::ListInternal(list) => fields(list.elements()),
        Field::MapInternal(map) => map
            .entries()
            .iter()
            .map(|(key, value)| bytes(key) + bytes(value))
            .sum(),
        _ => 0,
    };
    size_of::<Field>() + heap
}
