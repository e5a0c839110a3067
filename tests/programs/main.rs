//! Programs as a user runs them: `headroom`, the examples, and trainings that are killed.

mod checkpoint;
mod checkpoint_with_data;
mod figures;
#[cfg(feature = "cli")]
mod headroom;
#[cfg(all(feature = "cli", target_os = "linux"))]
#[path = "../support/nvml.rs"]
mod nvml;
mod pages;
mod train_images;
mod train_text;
mod train_text_ranks;
