//! Where gradients wait for the operation that they belong to.
//!
//! candle adds each gradient to a tensor of zeros, so three tensors of that size exist at once. Recorded operations hand theirs
//! to each other instead, and give candle a scalar. candle's store of gradients then holds a sum that leads to this scalar, and
//! so do the gradients live: until the operation takes them, or until the store is dropped because the backward pass has failed.
//! A later pass over the same graph finds nothing of it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use candle_core::{Error, Result, Storage, Tensor};
use parking_lot::Mutex;

use super::node::node;
use crate::bias::add_to_rows;
use crate::kernel::in_range;
use crate::scope::OnDrop;

const NAME: &str = "mailbox";

/// A gradient on its way.
pub struct Gradient {
    pub tensor: Tensor,
    /// Whether no other tensor that is still used shares its storage, so that it may be changed.
    pub is_alone: bool,
}

impl Gradient {
    /// A gradient whose storage no other tensor shares.
    pub fn alone(tensor: Tensor) -> Self {
        let is_alone = true;
        Self { tensor, is_alone }
    }

    /// The sum, in the place of one of the two where that may be changed.
    pub fn plus(self, other: Self) -> Result<Self> {
        let can_change = |it: &Self| it.is_alone && it.tensor.is_contiguous();
        let (sum, part) = match (can_change(&self), can_change(&other)) {
            (true, _) => (self.tensor, other.tensor),
            (false, true) => (other.tensor, self.tensor),
            (false, false) => {
                in_range(NAME, [&self.tensor])?;
                return Ok(Self::alone((self.tensor + other.tensor)?));
            }
        };
        let row = sum.flatten_all()?.unsqueeze(0)?;
        let row = add_to_rows(row, &part.flatten_all()?)?;
        Ok(Self::alone(row.reshape(sum.shape())?))
    }
}

/// Where a tensor's storage is. Tensors that share it have the same address.
pub fn address(tensor: &Tensor) -> *const Storage {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage)
}

/// Gradients, each at the place that it belongs to. Those behind the end are missing too.
pub type Mail = Vec<Option<Gradient>>;

/// The gradients that have arrived at an operation, for each pass in progress.
#[derive(Default)]
pub struct Mailbox(Mutex<Vec<(u64, Weak<Mutex<Mail>>)>>);

impl Mailbox {
    /// Leaves gradients, which are added to what waits. Returns a scalar that candle has to take as a gradient of `link`.
    pub fn leave(
        &self,
        link: &Tensor,
        gradients: impl IntoIterator<Item = (usize, Gradient)>,
    ) -> Result<Tensor> {
        let mut mail = self.find().unwrap_or_default();
        for (place, gradient) in gradients {
            if mail.len() <= place {
                mail.resize_with(place + 1, || None);
            }
            if let Some(waiting) = mail.get_mut(place) {
                *waiting = Some(match waiting.take() {
                    Some(other) => other.plus(gradient)?,
                    None => gradient,
                });
            }
        }
        let mail = Arc::new(Mutex::new(mail));
        self.0.lock().push((PASS.get(), Arc::downgrade(&mail)));
        node(NAME, std::slice::from_ref(link), None, move |_, _| {
            let _holds = &mail;
            Err(Error::BackwardNotSupported { op: NAME }.bt())
        })
    }

    /// Takes what has arrived in this pass.
    ///
    /// # Errors
    /// If nothing was left, not even no gradients.
    pub fn take(&self) -> Result<Mail> {
        let lost = || Error::Msg(format!("{NAME}: the gradients of this pass are lost")).bt();
        self.find().ok_or_else(lost)
    }

    fn find(&self) -> Option<Mail> {
        let mut passes = self.0.lock();
        passes.retain(|(_, mail)| mail.strong_count() > 0);
        let at = passes.iter().position(|(pass, _)| *pass == PASS.get())?;
        let (_, mail) = passes.swap_remove(at);
        drop(passes);
        let mail = mail.upgrade()?;
        let taken = std::mem::take(&mut *mail.lock());
        Some(taken)
    }
}

thread_local! {
    /// The number of the thread's backward pass, or of one that began within it.
    static PASS: Cell<u64> = Cell::new(next());
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// Runs a backward pass that begins within another one. Both may reach the same operations.
pub fn within_pass<T>(backward: impl FnOnce() -> T) -> T {
    let outer = PASS.replace(next());
    let _restored = OnDrop(|| PASS.set(outer));
    backward()
}
