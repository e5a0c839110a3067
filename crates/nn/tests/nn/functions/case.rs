use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom_nn::VarBuilder;

use crate::check::{FLOATS, numbers};

/// What a function is given.
#[derive(Debug, Clone)]
pub enum Argument {
    /// Floating-point numbers of these dimensions for each sample. Samples are dimension 0.
    Sample(Vec<usize>),
    /// Floating-point numbers that all samples share: a parameter.
    Shared(Vec<usize>),
    /// Whole numbers below a bound, u32, of these dimensions for each sample.
    Numbers(Vec<usize>, u32),
}

use Argument::*;

impl Argument {
    /// The values that belong to a sample with this seed, in f64 or u32; those of a shared argument are the same for all seeds.
    pub fn values(&self, place: usize, seed: u64) -> Result<Tensor> {
        let place = place as u64;
        match self {
            Sample(dims) => {
                let dims: Vec<_> = [1].iter().chain(dims).copied().collect();
                Ok(numbers(&dims, 1 + 100 * seed + place))
            }
            Shared(dims) => Ok(numbers(dims, 90 + place)),
            Numbers(dims, bound) => {
                let dims: Vec<_> = [1].iter().chain(dims).copied().collect();
                let parts = (numbers(&dims, 1 + 100 * seed + place) + 2.)?;
                let parts = (parts * (f64::from(*bound) / 4.))?.floor()?;
                parts.to_dtype(DType::U32)
            }
        }
    }
}

/// How the output of a batch is made of those of its samples.
#[derive(Clone, Copy)]
pub enum Kind {
    /// One after the other in dimension 0, with the same bits as alone.
    Rows,
    /// One after the other in dimension 0. Sums may be in another order.
    Sums,
    /// The mean over what counts, given how much of the arguments does.
    Mean(fn(&[Tensor]) -> Result<f64>),
    /// By its definition it depends on the batch, for this reason.
    Batch(&'static str),
}

type Run = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// A function and what it can be given.
pub struct Case {
    /// Its public name, and what is special about it.
    pub name: String,
    /// The public names that it tests.
    pub covers: Vec<&'static str>,
    /// The types of its floating-point arguments.
    pub dtypes: Vec<DType>,
    pub kind: Kind,
    /// Why its gradient is not that of its differences in f64, if it is not.
    pub no_differences: Option<&'static str>,
    /// Why its sums over many samples are not those of f64, if they are not.
    pub no_sums: Option<&'static str>,
    /// Only on the CPU.
    pub only_cpu: bool,
    arguments: Box<dyn Fn(usize) -> Vec<Argument>>,
    run: Run,
}

impl Case {
    /// A function of `covers`, separated by commas, that is given `arguments` for a length of a sample.
    pub fn new(
        covers: &'static str,
        what: &str,
        kind: Kind,
        arguments: impl Fn(usize) -> Vec<Argument> + 'static,
        run: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
    ) -> Self {
        let covers: Vec<_> = covers.split(',').map(str::trim).collect();
        Self {
            name: match what {
                "" => covers[0].to_owned(),
                what => format!("{}: {what}", covers[0]),
            },
            covers,
            dtypes: FLOATS.to_vec(),
            kind,
            no_differences: None,
            no_sums: None,
            only_cpu: false,
            arguments: Box::new(arguments),
            run: Box::new(run),
        }
    }

    /// A function of the rows of one tensor.
    pub fn of_rows(
        covers: &'static str,
        what: &str,
        width: usize,
        run: impl Fn(&Tensor) -> Result<Tensor> + 'static,
    ) -> Self {
        let arguments = move |length| vec![Sample(vec![length, width])];
        Self::new(covers, what, Kind::Rows, arguments, move |x| run(&x[0]))
    }

    /// Only for these types.
    pub fn only(mut self, dtypes: &[DType]) -> Self {
        self.dtypes = dtypes.to_vec();
        self
    }

    pub fn without_differences(mut self, reason: &'static str) -> Self {
        self.no_differences = Some(reason);
        self
    }

    pub fn without_sums(mut self, reason: &'static str) -> Self {
        self.no_sums = Some(reason);
        self
    }

    pub fn on_the_cpu(mut self) -> Self {
        self.only_cpu = true;
        self
    }

    pub fn arguments(&self, length: usize) -> Vec<Argument> {
        (self.arguments)(length)
    }

    pub fn run(&self, arguments: &[Tensor]) -> Result<Tensor> {
        (self.run)(arguments)
    }
}

/// The tensors of a layer under the names that its constructor asks for.
pub fn vb(tensors: &[(&str, &Tensor)]) -> VarBuilder<'static> {
    let (dtype, device) = tensors
        .first()
        .map_or((DType::F32, Device::Cpu), |(_, tensor)| {
            (tensor.dtype(), tensor.device().clone())
        });
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| ((*name).to_owned(), (*tensor).clone()));
    VarBuilder::from_tensors(tensors.collect::<HashMap<_, _>>(), dtype, &device)
}
