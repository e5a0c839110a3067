//! Gradients of every function against central differences in f64.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use crate::check::{factors, numbers};
use crate::functions::alone::batch;
use crate::functions::{Argument, Case, all};

/// How floating-point arguments lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Contiguous,
    /// The last two dimensions lie in memory the other way around.
    Transposed,
    /// A part of a longer last dimension, from an offset on.
    Narrowed,
    /// Every other element of each row, or one sample for all.
    Strided,
}

const LAYOUTS: [Layout; 4] = [
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

const SAMPLES: usize = 2;

/// A function with arguments in a layout, as a function of what is stored.
struct Probe<'a> {
    case: &'a Case,
    layout: Layout,
    /// Whether each argument is also used elsewhere.
    twice: bool,
    arguments: Vec<Argument>,
}

impl Probe<'_> {
    /// A weighted sum of the output, and of the squares of arguments that are used twice.
    fn loss(&self, stored: &[Tensor]) -> Result<Tensor> {
        let given = stored
            .iter()
            .zip(&self.arguments)
            .map(|(stored, argument)| match argument {
                Argument::Numbers(..) => Ok(stored.clone()),
                Argument::Sample(_) => self.layout.view(stored, Some(SAMPLES)),
                Argument::Shared(_) => self.layout.view(stored, None),
            });
        let given = given.collect::<Result<Vec<_>>>()?;
        let output = self.case.run(&given)?;
        let mut loss = (&output * factors(output.dims()))?.sum_all()?;
        if self.twice {
            for argument in given.iter().filter(|x| x.dtype().is_float()) {
                let squares = (argument.sqr()? * factors(argument.dims()))?;
                loss = (loss + squares.sum_all()?)?;
            }
        }
        Ok(loss)
    }

    /// The largest difference between slopes along some directions and what the gradients say, in proportion to the gradient.
    fn off(&self) -> Result<f64> {
        const STEP: f64 = 1e-5;
        const DIRECTIONS: u64 = 4;
        let values = batch(self.case, 3, 0..SAMPLES as u64, (DType::F64, &Device::Cpu))?;
        let stored = values
            .iter()
            .zip(&self.arguments)
            .map(|(values, argument)| match argument {
                Argument::Numbers(..) => Ok(values.clone()),
                Argument::Sample(_) => self.layout.store(values, true),
                Argument::Shared(_) => self.layout.store(values, false),
            });
        let stored = stored.collect::<Result<Vec<_>>>()?;
        let vars = stored.iter().map(|values| match values.dtype().is_float() {
            true => Var::from_tensor(values).map(Some),
            false => Ok(None),
        });
        let vars = vars.collect::<Result<Vec<_>>>()?;
        let tensors = vars.iter().zip(&stored);
        let tensors =
            tensors.map(|(var, stored)| var.as_ref().map_or(stored, |var| var.as_tensor()));
        let store = self
            .loss(&tensors.cloned().collect::<Vec<_>>())?
            .backward()?;
        let mut most = 0f64;
        for (place, var) in vars.iter().enumerate() {
            let Some(var) = var else { continue };
            let Some(gradient) = store.get(var) else {
                candle_core::bail!("argument {place} has no gradient")
            };
            if (gradient.dims(), gradient.dtype()) != (var.dims(), var.dtype()) {
                candle_core::bail!("the gradient of argument {place} is {gradient:?}")
            }
            let length = gradient.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt();
            for seed in 0..DIRECTIONS {
                let direction = numbers(var.dims(), 1000 + seed);
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
}

#[test]
fn gradients_are_those_of_central_differences() {
    let (mut cases, mut wrong, mut failing) = (0, Vec::new(), Vec::new());
    for case in all().iter().filter(|case| case.no_differences.is_none()) {
        for layout in LAYOUTS {
            for twice in [false, true] {
                cases += 1;
                let arguments = case.arguments(3);
                let probe = Probe {
                    case,
                    layout,
                    twice,
                    arguments,
                };
                let name = format!("{}, {layout:?}, twice: {twice}", case.name);
                match probe.off() {
                    // The step's square, and the rounding of the loss divided by the step.
                    Ok(off) if off < 1e-7 => {}
                    Ok(off) => wrong.push(format!("{name}: {off:e} off")),
                    Err(error) => failing.push(format!("{name}: {error}")),
                }
            }
        }
    }
    println!("figure: gradients/nn_cases = {cases} cases");
    println!("figure: gradients/nn_cases_wrong = {} cases", wrong.len());
    println!(
        "figure: gradients/nn_cases_failing = {} cases",
        failing.len()
    );
    assert!(
        wrong.is_empty() && failing.is_empty(),
        "wrong: {wrong:#?}\nfailing: {failing:#?}"
    );
}
