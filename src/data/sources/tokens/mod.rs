//! Tokens, in raw files or in memory.

mod builder;
mod content;
mod dataset;
mod header;
mod stack;
mod token_type;
mod window;

pub use builder::TokensBuilder;
pub use dataset::Tokens;
pub use stack::stack_tokens;
pub use token_type::TokenType;
pub use window::TokenWindow;
