use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::TokenWindow;
use crate::error::{BoxedError, invalid};

/// Makes one tensor of windows of equal length: `u32`, `[windows, tokens]`, on the CPU.
///
/// It is a collate function for a loader of [`Tokens`](super::Tokens).
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there is no window or if the lengths differ, as those of documents do, and
/// [`DataError::File`](crate::error::DataError::File) if a file cannot be read or has changed since it was opened.
pub fn stack_tokens(windows: Vec<TokenWindow>) -> Result<Tensor, BoxedError> {
    let len = match windows.first() {
        Some(first) => first.len(),
        None => return Err(invalid!(Data, "no windows to stack").into()),
    };
    let mut lengths = windows.iter().map(TokenWindow::len).enumerate();
    if let Some((other, found)) = lengths.find(|(_, found)| *found != len) {
        return Err(invalid!(
            Data,
            "windows of equal length are stacked: window 0 has {len} tokens, window {other} \
             has {found}; `Pad` and `Pack` take documents"
        )
        .into());
    }
    let mut tokens = Vec::with_capacity(windows.len() * len);
    // Of one window: what the system copies into it is still in the core's first cache when it is widened.
    let mut bytes = Vec::new();
    for window in &windows {
        window.append(&mut bytes, &mut tokens)?;
    }
    // Once for windows of the same file, after they were read.
    for same in windows.chunk_by(|a, b| Arc::ptr_eq(&a.content, &b.content)) {
        same.first()
            .map_or(Ok(()), |window| window.content.check())?;
    }
    Ok(Tensor::from_vec(
        tokens,
        (windows.len(), len),
        &Device::Cpu,
    )?)
}
