//! Into and out of [`candle_core::Error`].

use std::error::Error as StdError;
use std::sync::Arc;

use super::classify::{Class, classify, classify_dynamic};
use super::{
    BatchError, DeviceFault, Error, LossError, MemoryError, MonitorError, OptimizerError,
    OutputError, ParameterError, PolicyError, ResourceExhausted, StateError, UpdateInterrupted,
    WindowLost,
};

/// The questions that a program asks of any [`candle_core::Error`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::ErrorExt;
///
/// match Tensor::zeros((1024, 1024), DType::F32, &Device::Cpu) {
///     Ok(tensor) => assert_eq!(tensor.elem_count(), 1 << 20),
///     Err(error) => match error.resource_exhausted() {
///         Some(exhausted) => eprintln!("too large for this device: {exhausted}"),
///         None => eprintln!("another error: {error}"),
///     },
/// }
/// ```
pub trait ErrorExt {
    /// The exhaustion that this error is or carries, however it is wrapped; its source is left with this error.
    fn resource_exhausted(&self) -> Option<ResourceExhausted>;

    /// The device fault that this error is or carries, however it is wrapped.
    fn device_fault(&self) -> Option<DeviceFault>;

    /// What to do about the status of the CUDA driver that this error is or carries, such as a driver older than the kernels; from the
    /// same table as the findings of [`Environment::check`](crate::Environment::check).
    ///
    /// `None` where no status is known, and for exhaustions, which have remedies of their own.
    ///
    /// ```
    /// use candle_headroom::ErrorExt;
    ///
    /// let error = candle_core::Error::msg("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"…\")");
    /// assert!(error.remedy().is_some_and(|remedy| remedy.contains("update the driver")));
    /// ```
    fn remedy(&self) -> Option<&'static str>;
}

impl ErrorExt for candle_core::Error {
    fn resource_exhausted(&self) -> Option<ResourceExhausted> {
        match classify(self) {
            Class::Exhausted(exhausted) => Some(*exhausted),
            Class::Fault(_) | Class::Execution | Class::Setup(_) | Class::Other => None,
        }
    }

    fn device_fault(&self) -> Option<DeviceFault> {
        match classify(self) {
            Class::Fault(fault) => Some(*fault),
            Class::Exhausted(_) | Class::Execution | Class::Setup(_) | Class::Other => None,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        classify(self).remedy()
    }
}

macro_rules! any_error {
    ($($error:ty),+) => {$(
        /// For errors whose type is not at hand, such as those in `anyhow::Error`.
        impl ErrorExt for $error {
            fn resource_exhausted(&self) -> Option<ResourceExhausted> {
                match classify_dynamic(self) {
                    Class::Exhausted(exhausted) => Some(*exhausted),
                    Class::Fault(_) | Class::Execution | Class::Setup(_) | Class::Other => None,
                }
            }

            fn device_fault(&self) -> Option<DeviceFault> {
                match classify_dynamic(self) {
                    Class::Fault(fault) => Some(*fault),
                    Class::Exhausted(_) | Class::Execution | Class::Setup(_) | Class::Other => None,
                }
            }

            fn remedy(&self) -> Option<&'static str> {
                classify_dynamic(self).remedy()
            }
        }
    )+};
}

any_error!(dyn StdError + 'static, dyn StdError + Send + Sync + 'static);

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        let error = match unwrap_own(error) {
            Ok(own) => return own,
            Err(error) => error,
        };
        match classify(&error) {
            Class::Exhausted(mut exhausted) => {
                exhausted.source = Some(Arc::new(error));
                Self::ResourceExhausted(exhausted)
            }
            Class::Fault(mut fault) => {
                fault.source = Some(Arc::new(error));
                Self::DeviceFault(fault)
            }
            Class::Execution | Class::Setup(_) | Class::Other => Self::Candle(Box::new(error)),
        }
    }
}

/// Our own error as it went into candle's, if nothing but a backtrace was put around it. Context that somebody added stays:
/// such an error becomes the source of a new one.
fn unwrap_own(error: candle_core::Error) -> Result<Error, candle_core::Error> {
    use candle_core::Error as E;
    match error {
        E::WrappedContext { wrapped, context } if context == CARRIER => wrapped
            .downcast::<Error>()
            .map(|own| *own)
            .map_err(|wrapped| E::WrappedContext { wrapped, context }),
        E::WithBacktrace { inner, backtrace } => {
            unwrap_own(*inner).map_err(|inner| E::WithBacktrace {
                inner: Box::new(inner),
                backtrace,
            })
        }
        other => Err(other),
    }
}

/// The context under which our own errors travel inside candle's; nobody else's errors are unwrapped.
const CARRIER: &str = "candle-headroom";

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            // Of candle's variants this one is made to carry a foreign error with its type.
            own => Self::WrappedContext {
                wrapped: Box::new(own),
                context: CARRIER.to_owned(),
            },
        }
    }
}

macro_rules! boxed {
    ($($variant:ident($payload:ty)),+ $(,)?) => {$(
        impl From<$payload> for Error {
            fn from(payload: $payload) -> Self {
                Self::$variant(Box::new(payload))
            }
        }
    )+};
}

boxed! {
    ResourceExhausted(ResourceExhausted),
    DeviceFault(DeviceFault),
    Batch(BatchError),
    Policy(PolicyError),
    Loss(LossError),
    Parameter(ParameterError),
    Optimizer(OptimizerError),
    State(StateError),
    Memory(MemoryError),
    Monitor(MonitorError),
    Output(OutputError),
    WindowLost(WindowLost),
    UpdateInterrupted(UpdateInterrupted),
}

impl From<ResourceExhausted> for candle_core::Error {
    fn from(exhausted: ResourceExhausted) -> Self {
        Error::from(exhausted).into()
    }
}

impl From<DeviceFault> for candle_core::Error {
    fn from(fault: DeviceFault) -> Self {
        Error::from(fault).into()
    }
}
