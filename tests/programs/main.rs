//! Programs as a user runs them: the examples, and trainings that are killed.

mod checkpoint;
mod checkpoint_with_data;
mod figures;
mod lines;
mod pages;
mod suggestions;
mod train_images;
mod train_text;
mod train_text_ranks;
