use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{
    Dataset, JsonLines, Lines, Loader, SafetensorsDataset, Tokens, stack_tokens,
};

use crate::{PIECE, SERVER, bytes, quick, with};

/// Puts the bytes of a file at a URL.
fn uploaded(file: &std::path::Path, path: &str) -> String {
    SERVER.put(path, std::fs::read(file).unwrap());
    SERVER.url(path)
}

#[test]
fn tokens_lines_and_tensors_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.bin");
    std::fs::write(&path, bytes(PIECE + 1_000_000)).unwrap();
    let url = uploaded(&path, "datasets/tokens.bin");
    let here = Tokens::builder([&path])
        .window(1_025)
        .stride(1_024)
        .open()
        .unwrap();
    let there = with(quick(), || {
        Tokens::builder([&url]).window(1_025).stride(1_024).open()
    })
    .unwrap();
    assert_eq!(there.name(), url);
    let batches = |tokens: Tokens| {
        let loader = Loader::builder(tokens, stack_tokens)
            .batch(16)
            .shuffle(1)
            .workers(3)
            .build()
            .unwrap();
        let batches = loader.map(|batch| batch.unwrap().to_vec2::<u32>().unwrap());
        batches.collect::<Vec<_>>()
    };
    assert!(batches(here) == batches(there));

    let path = folder.path().join("lines.jsonl");
    let text: String = (0..3_000)
        .map(|at| format!("[{at}, \"{}\"]\n", "é".repeat(at % 9)))
        .collect();
    std::fs::write(&path, text).unwrap();
    let url = uploaded(&path, "datasets/lines.jsonl");
    let (here, there) = (
        Lines::open(&path).unwrap(),
        with(quick(), || Lines::open(&url)).unwrap(),
    );
    let json = with(quick(), || JsonLines::<(usize, String)>::open(&url)).unwrap();
    assert_eq!((there.len(), json.len()), (3_000, 3_000));
    for index in [0, 1_234, 2_999] {
        assert_eq!(here.get(index).unwrap(), there.get(index).unwrap());
        assert_eq!(json.get(index).unwrap().0, index);
    }

    let path = folder.path().join("rows.safetensors");
    let x = Tensor::arange(0f32, 3_000., &Device::Cpu)
        .unwrap()
        .reshape((1_000, 3))
        .unwrap();
    candle_core::safetensors::save(&HashMap::from([("x", x)]), &path).unwrap();
    let url = uploaded(&path, "datasets/rows.safetensors");
    let rows = with(quick(), || SafetensorsDataset::builder(&url).open()).unwrap();
    assert_eq!(
        rows.get(999).unwrap()[0].to_vec1::<f32>().unwrap(),
        [2_997., 2_998., 2_999.]
    );
    assert_eq!(rows.get(0).unwrap()[0].dtype(), DType::F32);
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet() {
    use candle_headroom::data::ParquetDataset;
    use parquet::data_type::Int64Type;
    use parquet::{file::writer::SerializedFileWriter, schema::parser::parse_message_type};

    let mut file = Vec::new();
    let schema = parse_message_type("message m { required int64 number; }").unwrap();
    let mut writer =
        SerializedFileWriter::new(&mut file, schema.into(), Default::default()).unwrap();
    for group in 0..3 {
        let values: Vec<i64> = (group * 100..group * 100 + 100).collect();
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&values, None, None)
            .unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    writer.close().unwrap();
    SERVER.put("datasets/rows.parquet", file);
    let url = SERVER.url("datasets/rows.parquet");
    let rows = with(quick(), || {
        ParquetDataset::<(i64,)>::builder([&url, &url]).open()
    })
    .unwrap();
    assert_eq!(rows.len(), 600);
    for index in [0, 299, 300, 599] {
        assert_eq!(rows.get(index).unwrap(), (index as i64 % 300,));
    }
}

#[test]
fn an_empty_object_is_refused() {
    SERVER.put("datasets/empty", Vec::new());
    let error = with(quick(), || Lines::open(SERVER.url("datasets/empty"))).unwrap_err();
    assert!(
        error.to_string().ends_with("datasets/empty: is empty"),
        "{error}"
    );
}
