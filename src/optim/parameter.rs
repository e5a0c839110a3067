use candle_core::Var;

/// A Var that an optimizer updates, and its name.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::optim::{Commit, Parameter};
/// use candle_headroom::AdamW;
///
/// let w = Var::new(&[0f32, 1.], &Device::Cpu)?;
/// let optimizer = AdamW::builder(vec![Parameter::new("w", w)]).build()?;
/// assert_eq!(optimizer.parameters()[0].name, "w");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Parameter {
    /// The name in errors and saved state. A Var without a name has its place in the list: `0`, `1`, and so on.
    pub name: String,
    /// The variable.
    pub var: Var,
}

impl Parameter {
    /// A named Var.
    pub fn new(name: impl Into<String>, var: Var) -> Self {
        Self {
            name: name.into(),
            var,
        }
    }
}
