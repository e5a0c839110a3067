//! How gradients and parameters move: in place, without temporaries.

mod blend;

pub(crate) use blend::blend;
