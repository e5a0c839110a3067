//! Programs as a user runs them: the examples, and trainings that are killed.

mod checkpoint;
mod doctor;
mod train_text;
