//! Arguments of a function in several layouts, and its gradients: against central differences, and on a device against the CPU.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use super::alone::{batch, f64s, off};
use super::{Argument, Case};
use crate::check::{factors, numbers};

/// How floating-point arguments lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layout {
    Contiguous,
    /// The last two dimensions lie in memory the other way around.
    Transposed,
    /// A part of a longer last dimension, from an offset on.
    Narrowed,
    /// Every other element of each row, or one sample for all.
    Strided,
}

pub const LAYOUTS: [Layout; 4] = [
    Layout::Contiguous,
    Layout::Transposed,
    Layout::Narrowed,
    Layout::Strided,
];

impl Layout {
    /// What is stored, for these values. Of samples that are broadcast only the first is.
    fn store(self, values: &Tensor, is_sample: bool) -> Result<Tensor> {
        match self {
            Self::Transposed if values.rank() >= 2 => {
                values.transpose(D::Minus1, D::Minus2)?.contiguous()
            }
            Self::Narrowed => Tensor::cat(&[values, values], D::Minus1),
            Self::Strided if is_sample => values.narrow(0, 0, 1)?.contiguous(),
            Self::Strided => Tensor::stack(&[values, values], D::Minus1),
            _ => values.contiguous(),
        }
    }

    /// The argument that is made of what is stored, of so many samples.
    fn view(self, stored: &Tensor, samples: Option<usize>) -> Result<Tensor> {
        match (self, samples) {
            (Self::Transposed, _) if stored.rank() >= 2 => stored.transpose(D::Minus1, D::Minus2),
            (Self::Narrowed, _) => {
                let width = stored.dim(D::Minus1)? / 2;
                stored.narrow(D::Minus1, width, width)
            }
            (Self::Strided, Some(samples)) => {
                let dims: Vec<_> = [samples]
                    .iter()
                    .chain(&stored.dims()[1..])
                    .copied()
                    .collect();
                stored.broadcast_as(dims)
            }
            (Self::Strided, None) => stored.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1),
            _ => Ok(stored.clone()),
        }
    }
}

const LENGTH: usize = 3;
const SAMPLES: usize = 2;

/// A function with arguments in a layout, as a function of what is stored.
pub struct Probe<'a> {
    case: &'a Case,
    layout: Layout,
    /// Whether each argument is also used elsewhere.
    twice: bool,
    arguments: Vec<Argument>,
}

/// A loss, and for each argument its gradient unless it has whole numbers.
struct Differentiated {
    loss: Tensor,
    gradients: Vec<Option<Tensor>>,
}

impl<'a> Probe<'a> {
    /// Each layout, with and without a second consumer.
    pub fn all(case: &'a Case) -> impl Iterator<Item = Self> {
        let kinds = LAYOUTS.into_iter().flat_map(|it| [(it, false), (it, true)]);
        kinds.map(move |(layout, twice)| Self {
            case,
            layout,
            twice,
            arguments: case.arguments(LENGTH),
        })
    }

    pub fn name(&self) -> String {
        format!(
            "{}, {:?}, twice: {}",
            self.case.name, self.layout, self.twice
        )
    }

    /// What is stored of the arguments.
    fn stored(&self, (dtype, device): (DType, &Device)) -> Result<Vec<Tensor>> {
        let values = batch(self.case, LENGTH, 0..SAMPLES as u64, (dtype, &Device::Cpu))?;
        let stored = values.iter().zip(&self.arguments);
        let stored = stored.map(|(values, argument)| {
            let stored = match argument {
                Argument::Numbers(..) => values.clone(),
                Argument::Sample(_) => self.layout.store(values, true)?,
                Argument::Shared(_) => self.layout.store(values, false)?,
            };
            stored.to_device(device)
        });
        stored.collect()
    }

    /// A weighted sum of the output, and of the squares of arguments that are used twice.
    fn loss(&self, stored: &[Tensor]) -> Result<Tensor> {
        let given = stored.iter().zip(&self.arguments);
        let given = given.map(|(stored, argument)| match argument {
            Argument::Numbers(..) => Ok(stored.clone()),
            Argument::Sample(_) => self.layout.view(stored, Some(SAMPLES)),
            Argument::Shared(_) => self.layout.view(stored, None),
        });
        let given = given.collect::<Result<Vec<_>>>()?;
        let weighted = |tensor: &Tensor| {
            let factors = factors(tensor.dims()).to_dtype(tensor.dtype())?;
            (tensor * factors.to_device(tensor.device())?)?.sum_all()
        };
        let mut loss = weighted(&self.case.run(&given)?)?;
        if self.twice {
            for argument in given.iter().filter(|x| x.dtype().is_float()) {
                loss = (loss + weighted(&argument.sqr()?)?)?;
            }
        }
        Ok(loss)
    }

    fn differentiate(&self, stored: &[Tensor]) -> Result<Differentiated> {
        let vars = stored.iter().map(|values| match values.dtype().is_float() {
            true => Var::from_tensor(values).map(Some),
            false => Ok(None),
        });
        let vars = vars.collect::<Result<Vec<_>>>()?;
        let tensors = vars.iter().zip(stored);
        let tensors =
            tensors.map(|(var, stored)| var.as_ref().map_or(stored, |var| var.as_tensor()));
        let loss = self.loss(&tensors.cloned().collect::<Vec<_>>())?;
        let store = loss.backward()?;
        let gradients = vars.iter().enumerate().map(|(place, var)| {
            let Some(var) = var else { return Ok(None) };
            let Some(gradient) = store.get(var) else {
                candle_core::bail!("argument {place} has no gradient")
            };
            if (gradient.dims(), gradient.dtype()) != (var.dims(), var.dtype()) {
                candle_core::bail!("the gradient of argument {place} is {gradient:?}")
            }
            Ok(Some(gradient.clone()))
        });
        Ok(Differentiated {
            gradients: gradients.collect::<Result<_>>()?,
            loss,
        })
    }

    /// The largest difference between slopes along some directions and what the gradients say, in proportion to the gradient; in f64,
    /// on the CPU.
    pub fn off(&self) -> Result<f64> {
        const STEP: f64 = 1e-5;
        const DIRECTIONS: u64 = 4;
        let stored = self.stored((DType::F64, &Device::Cpu))?;
        let done = self.differentiate(&stored)?;
        let mut most = 0f64;
        for (place, gradient) in done.gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let length = gradient.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt();
            for seed in 0..DIRECTIONS {
                let direction = numbers(gradient.dims(), 1000 + seed);
                let moved = |by: f64| -> Result<f64> {
                    let mut moved = stored.clone();
                    moved[place] = (&stored[place] + (&direction * by)?)?;
                    self.loss(&moved)?.to_scalar()
                };
                let slope = (moved(STEP)? - moved(-STEP)?) / (2. * STEP);
                let found = (gradient * &direction)?.sum_all()?.to_scalar::<f64>()?;
                let scale = length * direction.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt();
                let off = (slope - found).abs() / scale.max(1e-3);
                most = if off <= most { most } else { off };
            }
        }
        Ok(most)
    }

    /// How far loss and gradients on a device are off from those on the CPU, in proportion to the largest value.
    pub fn off_on_device(&self, dtype: DType, device: &Device) -> Result<f64> {
        let on = |device: &Device| self.differentiate(&self.stored((dtype, device))?);
        let (found, expected) = (on(device)?, on(&Device::Cpu)?);
        let off = |found: &Tensor, expected: &Tensor| -> Result<f64> {
            let (found, expected) = (f64s(&found.to_device(&Device::Cpu)?)?, f64s(expected)?);
            let largest = expected
                .iter()
                .fold(1e-30, |most: f64, x| most.max(x.abs()));
            // Rounding is no part of a gradient of zeros.
            Ok(off(&found, &expected) * (largest / 1e-3).min(1.))
        };
        let mut most = off(&found.loss, &expected.loss)?;
        for pair in found.gradients.iter().zip(&expected.gradients) {
            if let (Some(found), Some(expected)) = pair {
                most = most.max(off(found, expected)?);
            }
        }
        Ok(most)
    }
}
