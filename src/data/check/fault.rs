/// A tensor is not what was declared.
#[derive(Debug)]
pub struct Fault {
    /// The row of its first dimension, if it is one row's fault.
    pub row: Option<usize>,
    pub found: String,
    pub expected: String,
}

impl Fault {
    /// A fault of the whole tensor.
    pub fn whole(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            row: None,
            found: found.into(),
            expected: expected.into(),
        }
    }
}
