use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::TokenWindow;
use crate::error::{BoxedError, DataError};

/// Makes one tensor of windows of equal length: `u32`, `[windows, tokens]`, on the CPU.
///
/// It is a collate function for a loader of [`Tokens`](super::Tokens). The tokens are read from the mapped file into the tensor in
/// one pass.
///
/// # Errors
/// [`DataError::Setting`] if there is no window or if the lengths differ, as those of documents do, and [`DataError::File`] if a file
/// was shortened while it was open.
pub fn stack_tokens(windows: Vec<TokenWindow>) -> Result<Tensor, BoxedError> {
    let len = match windows.first() {
        Some(first) => first.len(),
        None => return Err(DataError::Setting("no windows to stack".into()).into()),
    };
    if let Some(other) = windows.iter().position(|window| window.len() != len) {
        let found = windows.get(other).map_or(0, TokenWindow::len);
        let problem = format!(
            "windows of equal length are stacked: window 0 has {len} tokens, window {other} has {found}; pad or pack documents"
        );
        return Err(DataError::Setting(problem).into());
    }
    let mut tokens = Vec::with_capacity(windows.len() * len);
    let mut last: Option<&TokenWindow> = None;
    for window in &windows {
        // Once for each run of windows of the same file.
        if !last.is_some_and(|last| Arc::ptr_eq(&last.map, &window.map)) {
            window.check()?;
        }
        window.write_u32(&mut tokens);
        last = Some(window);
    }
    Ok(Tensor::from_vec(
        tokens,
        (windows.len(), len),
        &Device::Cpu,
    )?)
}
