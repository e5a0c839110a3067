//! [`Invalid`]: input that cannot be used.

use std::error::Error as StdError;
use std::fmt;

use super::boxed::BoxedError;
use super::error::Error;

/// A setting, an argument or saved state that cannot be used. Nothing has changed. Its text names the value and the remedy.
///
/// What it is about says a question of [`Error`], such as [`Error::is_batch`]. A program can seldom do more about such an error than show
/// it; the cases that it can act upon are variants of [`Error`] and of the errors within.
///
/// ```
/// use candle_headroom::{Error, Predictive};
///
/// let error = Predictive::builder().margin(2.0).build().unwrap_err();
/// assert!(error.is_policy());
/// assert_eq!(error.to_string(), "`margin` must be in [0, 0.9], got 2.0");
/// ```
pub struct Invalid {
    subject: Subject,
    text: String,
    cause: Option<BoxedError>,
}

macro_rules! subjects {
    ($($(#[doc = $doc:literal])+ $subject:ident: $is:ident),+ $(,)?) => {
        /// What an [`Invalid`] is about.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Subject {
            $($subject),+
        }

        impl Error {
            $(
                $(#[doc = $doc])+
                pub fn $is(&self) -> bool {
                    matches!(self, Self::Invalid(invalid) if invalid.subject == Subject::$subject)
                }
            )+
        }
    };
}

subjects! {
    /// Whether a batch cannot be cut into micro-batches.
    Batch: is_batch,
    /// Whether a layer watcher cannot be installed.
    Layers: is_layers,
    /// Whether a loss cannot be used. [`LossError`](super::LossError) has the cases to act upon.
    Loss: is_loss,
    /// Whether a device's memory cannot be opened, or its limit cannot be set.
    Memory: is_memory,
    /// Whether a monitor cannot be started.
    Monitor: is_monitor,
    /// Whether an optimizer cannot use its arguments.
    Optimizer: is_optimizer,
    /// Whether the parameters or buffers given to a trainer cannot be used.
    Parameter: is_parameter,
    /// Whether a batch policy was given an invalid setting, or saved state that is not its own.
    Policy: is_policy,
    /// Whether a setting of a dataset or loader cannot be used. [`DataError`](super::DataError) has the cases to act upon.
    Data: is_data,
    /// Whether a setting of checkpoints, or a name or value to save, cannot be used. [`CheckpointError`](super::CheckpointError) has the
    /// cases to act upon.
    Checkpoint: is_checkpoint,
    /// Whether a group of ranks cannot use its settings. [`GroupError`](super::GroupError) has the cases to act upon.
    Group: is_group,
    /// Whether saved state does not match the optimizer.
    State: is_state,
}

impl Invalid {
    pub(crate) fn new(subject: Subject, text: String) -> Self {
        Self {
            subject,
            text,
            cause: None,
        }
    }

    /// With the error behind it, which the text repeats, so that it is not the source.
    pub(crate) fn showing(self, cause: impl Into<BoxedError>) -> Self {
        let cause = Some(cause.into());
        Self { cause, ..self }
    }

    pub(super) fn shown(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&**self.cause.as_ref()?)
    }
}

/// An [`Error`] about a subject, with a text as `format!` makes it.
macro_rules! invalid {
    ($subject:ident, $($text:tt)+) => {
        $crate::error::Error::from($crate::error::Invalid::new(
            $crate::error::Subject::$subject,
            format!($($text)+),
        ))
    };
}
pub(crate) use invalid;

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Invalid {}
