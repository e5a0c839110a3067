use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::TokenWindow;
use crate::error::{BoxedError, DataError};

/// Bytes of windows that are copied at once; they stay in a core's second-level cache.
const BLOCK: usize = 1 << 18;

/// Makes one tensor of windows of equal length: `u32`, `[windows, tokens]`, on the CPU.
///
/// It is a collate function for a loader of [`Tokens`](super::Tokens).
///
/// # Errors
/// [`DataError::Setting`] if there is no window or if the lengths differ, as those of documents do, and [`DataError::File`] if a
/// file was shortened while it was open.
pub fn stack_tokens(windows: Vec<TokenWindow>) -> Result<Tensor, BoxedError> {
    let len = match windows.first() {
        Some(first) => first.len(),
        None => return Err(DataError::Setting("no windows to stack".into()).into()),
    };
    let mut lengths = windows.iter().map(TokenWindow::len).enumerate();
    if let Some((other, found)) = lengths.find(|(_, found)| *found != len) {
        let problem = format!(
            "windows of equal length are stacked: window 0 has {len} tokens, window {other} \
             has {found}; `Pad` and `Pack` take documents"
        );
        return Err(DataError::Setting(problem).into());
    }
    // Once for windows of the same file: asking for its length takes longer than copying a window.
    for same in windows.chunk_by(|a, b| Arc::ptr_eq(&a.map, &b.map)) {
        same.first().map_or(Ok(()), TokenWindow::check)?;
    }
    let mut tokens = Vec::with_capacity(windows.len() * len);
    let mut bytes = Vec::new();
    for same in windows.chunk_by(|a, b| a.token == b.token) {
        let Some(TokenWindow { token, .. }) = same.first() else {
            continue;
        };
        let windows = BLOCK / (len * token.size_in_bytes()).max(1);
        for block in same.chunks(windows.max(1)) {
            // Copied before they are widened: plain copies keep more reads from memory in flight, which takes half of the time.
            bytes.clear();
            bytes.reserve(block.len() * len * token.size_in_bytes());
            block
                .iter()
                .for_each(|window| bytes.extend_from_slice(window.bytes()));
            token.widen(&bytes, &mut tokens);
        }
    }
    Ok(Tensor::from_vec(
        tokens,
        (windows.len(), len),
        &Device::Cpu,
    )?)
}
