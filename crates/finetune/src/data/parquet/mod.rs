//! Parquet files, with the feature `parquet`.

#[cfg(not(feature = "parquet"))]
mod disabled;
#[cfg(feature = "parquet")]
mod enabled;

#[cfg(not(feature = "parquet"))]
pub use disabled::read;
#[cfg(feature = "parquet")]
pub use enabled::read;
