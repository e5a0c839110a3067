//! The examples as a user runs them.

mod doctor;
mod train_text;
