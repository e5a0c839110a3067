//! Where gradients wait for the operation that they belong to.
//!
//! candle adds each gradient to a tensor of zeros, so three tensors of that size exist at once. Recorded operations hand theirs
//! to each other instead, and give candle a scalar. candle's store of gradients then holds a sum that leads to this scalar, and
//! so do the gradients live: until the operation takes them, or until the store is dropped because the backward pass has failed.
//! A later pass over the same graph finds nothing of it.

use std::sync::{Arc, Weak};

use candle_core::{Error, Result, Tensor};
use parking_lot::Mutex;

use super::gradient::Gradient;
use super::node::node;
use super::pass::number;

const NAME: &str = "mailbox";

/// Gradients, each at the place that it belongs to. Those behind the end are missing too.
pub type Mail = Vec<Option<Gradient>>;

/// The gradients that have arrived at an operation, for each pass in progress.
#[derive(Default)]
pub struct Mailbox(Mutex<Vec<(u64, Weak<Mutex<Mail>>)>>);

impl Mailbox {
    /// Leaves gradients, which are added to what waits. Returns a scalar that candle has to take as a gradient of `link`; `None` if it has
    /// one of this pass already.
    pub fn leave(
        &self,
        link: &Tensor,
        gradients: impl IntoIterator<Item = (usize, Gradient)>,
    ) -> Result<Option<Tensor>> {
        let waiting = self.waiting();
        let is_first = waiting.is_none();
        let mail = waiting.unwrap_or_default();
        for (place, gradient) in gradients {
            let mut mail = mail.lock();
            if mail.len() <= place {
                mail.resize_with(place + 1, || None);
            }
            if let Some(waiting) = mail.get_mut(place) {
                *waiting = Some(match waiting.take() {
                    Some(other) => other.plus(gradient)?,
                    None => gradient.spread()?,
                });
            }
        }
        if !is_first {
            return Ok(None);
        }
        self.0.lock().push((number(), Arc::downgrade(&mail)));
        let scalar = node(NAME, std::slice::from_ref(link), None, move |_, _, _| {
            let _holds = &mail;
            Err(Error::BackwardNotSupported { op: NAME }.bt())
        })?;
        Ok(Some(scalar))
    }

    /// Takes what has arrived in this pass.
    ///
    /// # Errors
    /// If nothing was left, not even no gradients.
    pub fn take(&self) -> Result<Mail> {
        let lost = || Error::Msg(format!("{NAME}: the gradients of this pass are lost")).bt();
        let mail = self.waiting().ok_or_else(lost)?;
        self.0.lock().retain(|(pass, _)| *pass != number());
        let taken = std::mem::take(&mut *mail.lock());
        Ok(taken)
    }

    /// What waits in this pass.
    fn waiting(&self) -> Option<Arc<Mutex<Mail>>> {
        let mut passes = self.0.lock();
        passes.retain(|(_, mail)| mail.strong_count() > 0);
        let mut passes = passes.iter();
        let (_, mail) = passes.find(|(pass, _)| *pass == number())?;
        mail.upgrade()
    }
}
