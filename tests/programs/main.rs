//! Programs as a user runs them: the examples, and trainings that are killed.

mod checkpoint;
mod checkpoint_with_data;
mod figures;
mod pages;
mod train_images;
mod train_text;
mod train_text_ranks;
