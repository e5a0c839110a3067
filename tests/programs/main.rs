//! Programs as a user runs them: `headroom`, the examples, and trainings that are killed.

mod checkpoint;
mod checkpoint_with_data;
#[cfg(feature = "cli")]
mod headroom;
mod train_text;
mod train_text_ranks;
