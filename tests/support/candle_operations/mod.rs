//! candle-core's differentiable operations, in four layouts, with and without a second consumer of the same tensor.
//!
//! Each case is a small function from Vars to a scalar. Its values keep away from kinks and, unless its name says otherwise, from
//! ties, so that its slope exists and central differences find it.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

mod known;
mod layout;
mod table;
mod verdict;

use candle_core::{Device, Result, Tensor};

pub use known::{changes, known, known_on_cuda};
pub use layout::{LAYOUTS, Layout};
pub use table::{Operation, indices, one, operations, two};
pub use verdict::{Judged, Verdict, judge, slopes};

/// Maps tensors to a loss.
pub type Run = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync>;

/// An operation on tensors of a certain layout.
pub struct Case {
    /// Operation, layout and number of consumers, such as `max_pool2d 2: transposed, twice`.
    pub name: String,
    /// Values of the Vars, of type f64 on the CPU.
    pub inputs: Vec<Tensor>,
    /// The loss, a scalar, of tensors with the shapes of `inputs`, on any device and in f64 or f32. `inputs` themselves lie
    /// contiguously in memory; the function makes the operation's operands of them.
    pub run: Run,
    /// The step of central differences.
    pub step: f64,
    /// How far a gradient may be off, relative to the largest slope.
    pub tolerance: f64,
}

/// Each operation in each layout, once where the operation alone consumes its operands and once where something else does too.
pub fn cases() -> Vec<Case> {
    let operations = operations();
    let in_layouts = operations.iter().flat_map(|operation| {
        LAYOUTS.map(|layout| [false, true].map(|twice| case(operation, layout, twice)))
    });
    in_layouts.flatten().collect()
}

/// One operation in one layout; with `twice`, a second consumer of each operand adds to the loss.
pub fn case(operation: &Operation, layout: Layout, twice: bool) -> Case {
    let mut numbers = Numbers::default();
    let operands = operation.operands.iter().map(|operand| {
        let lies = match layout {
            Layout::Broadcast if !operand.broadcasts => Layout::Contiguous,
            _ => layout,
        };
        (lies, operand.clone())
    });
    let operands: Vec<_> = operands.collect();
    let inputs = operands.iter().map(|(layout, operand)| {
        let dims = layout.of_var(&operand.dims);
        let values = (0..dims.iter().product()).map(|_| operand.domain.place(numbers.unit()));
        let values: Vec<f64> = values.collect();
        Tensor::from_vec(values, dims, &Device::Cpu).expect("inputs")
    });
    let inputs = inputs.collect();
    let apply = operation.apply.clone();
    let run = move |vars: &[Tensor]| {
        let operands = vars.iter().zip(&operands);
        let operands = operands.map(|(var, (layout, operand))| layout.view(var, &operand.dims));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let mut loss = weighted_sum(&apply(&operands)?)?;
        if twice {
            for operand in &operands {
                // Last, so that the backward pass meets it first: what overwrites a gradient overwrites this one.
                loss = (loss + weighted_sum(operand)?)?;
            }
        }
        Ok(loss)
    };
    let consumers = if twice { "twice" } else { "once" };
    Case {
        name: format!("{}: {layout}, {consumers}", operation.name),
        inputs,
        run: Box::new(run),
        step: operation.step,
        tolerance: operation.tolerance,
    }
}

/// The sum of a tensor's elements, each with a weight of its own, so that gradients that are mixed up do not go unnoticed.
fn weighted_sum(tensor: &Tensor) -> Result<Tensor> {
    let weights = (0..tensor.elem_count()).map(|index| 0.5 + fraction(index + 7, ROOT));
    let weights = Tensor::from_vec(weights.collect::<Vec<_>>(), tensor.shape(), &Device::Cpu)?;
    let weights = weights
        .to_dtype(tensor.dtype())?
        .to_device(tensor.device())?;
    (tensor * weights)?.sum_all()
}

const GOLDEN: f64 = 0.618_033_988_749_894_8;
const ROOT: f64 = 0.414_213_562_373_095_1;

fn fraction(index: usize, ratio: f64) -> f64 {
    (index as f64 * ratio).fract()
}

/// Multiples of the golden ratio, modulo 1: any n of them in a row are about 1 / n apart.
#[derive(Default)]
struct Numbers {
    drawn: usize,
}

impl Numbers {
    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        fraction(self.drawn, GOLDEN)
    }
}
