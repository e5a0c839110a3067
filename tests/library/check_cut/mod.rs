//! Whether a closure's loss depends on how a batch is cut: `AdaptiveTrainer::check_cut`, and what a trainer checks by itself.

mod right;
mod trainer;

mod wrong;

use candle_core::{DType, Tensor};
use candle_headroom::batch::{CutCheck, Fixed, MicroBatch};
use candle_headroom::error::{CutCause, Error};
use candle_headroom::train::StepReport;
use candle_headroom::{AdaptiveTrainer, Foreign, Loss};
use candle_nn::SGD;

use crate::support::{Mlp, by_sgd};

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;

/// A loss of the samples `(x, y)`.
type Closure = Box<dyn Fn(&Mlp, &Tensor, &Tensor, &MicroBatch) -> Result<Loss>>;

struct Case {
    name: &'static str,
    loss: Closure,
    /// A batch of so many samples.
    batch: fn(usize, DType) -> (Tensor, Tensor),
}

fn case<L: Into<Loss>>(
    name: &'static str,
    loss: impl Fn(&Mlp, &Tensor, &Tensor, &MicroBatch) -> Result<L> + 'static,
) -> Case {
    let loss = move |model: &Mlp, x: &Tensor, y: &Tensor, micro: &MicroBatch| {
        loss(model, x, y, micro).map(Into::into)
    };
    Case {
        name,
        loss: Box::new(loss),
        batch: Mlp::data,
    }
}

const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::BF16, DType::F16];

fn trainer(model: &Mlp, size: usize) -> AdaptiveTrainer<Foreign<SGD>> {
    let policy = Fixed::new(size).unwrap();
    by_sgd(model).policy(policy).build().unwrap()
}

impl Case {
    /// What the trainer finds when it cuts a batch of so many samples into this size.
    fn step(&self, dtype: DType, samples: usize, size: usize) -> Result<StepReport, Error> {
        let model = Mlp::new(dtype);
        let batch = (self.batch)(samples, dtype);
        let mut trainer = trainer(&model, size);
        trainer.step(&batch, |(x, y), micro| (self.loss)(&model, &x, &y, micro))
    }

    fn check(&self, dtype: DType, samples: usize) -> Result<CutCheck, Error> {
        let model = Mlp::new(dtype);
        let batch = (self.batch)(samples, dtype);
        trainer(&model, 1).check_cut(&batch, |(x, y), micro| (self.loss)(&model, &x, &y, micro))
    }
}

/// The cause that the check names, if it found that the loss depends on the cut.
fn cause(error: &Error) -> Option<CutCause> {
    match error {
        Error::DependsOnCut(error) => Some(error.cause),
        _ => None,
    }
}

/// The squared distance of each sample, in (samples).
fn each(model: &Mlp, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    (model.forward(x)? - y)?.sqr()?.sum(1)
}

/// One column of a batch, in (samples).
fn column(x: &Tensor, index: usize) -> Result<Tensor> {
    x.narrow(1, index, 1)?.squeeze(1)
}

/// 1 for elements above 0, and 0 for others.
fn positive(x: &Tensor) -> Result<Tensor> {
    x.gt(&x.zeros_like()?)?.to_dtype(x.dtype())
}

fn read(x: &Tensor) -> Result<f64> {
    x.to_dtype(DType::F64)?.to_scalar()
}
