//! Raw files of tokens.

mod builder;
mod dataset;
mod stack;
mod token_type;
mod window;

pub use builder::TokensBuilder;
pub use dataset::Tokens;
pub use stack::stack_tokens;
pub use token_type::TokenType;
pub use window::TokenWindow;
