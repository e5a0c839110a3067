mod element;
mod lane;
mod load;
mod place;
mod shared;
mod slot;
mod stream;

pub use lane::Lane;
pub use load::Load;
