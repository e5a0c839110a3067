//! The environment checker on machines that tests lay out, with stand-ins for NVML and libcuda.
#![cfg(target_os = "linux")]

mod advice;
mod conditions;
mod documents;
mod fitness;
mod golden;
// With the feature `cuda` this program links libcuda itself, and would not start with a broken one.
#[cfg(not(feature = "cuda"))]
mod hanging;
mod healthy;
mod host;
mod hostile;
mod kernel_log;
mod library;
mod machine;
mod parsing;
mod patience;
mod ranks;
mod recognised;
mod report;
mod symptoms;
mod tables;
