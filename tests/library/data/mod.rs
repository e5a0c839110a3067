//! Samples and batches.

mod sources;
