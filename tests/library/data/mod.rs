//! Samples and batches.

mod check;
mod collate;
