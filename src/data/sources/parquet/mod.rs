//! Parquet files, as the Hugging Face hub serves data.

mod cache;
mod dataset;
mod page;
mod shard;
mod source;
mod value;

pub use dataset::{ParquetBuilder, ParquetDataset};
