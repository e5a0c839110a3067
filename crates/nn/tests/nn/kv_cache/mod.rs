//! Caches of keys and values against candle's own, in random sequences of appends and resets, with and without graphs.

mod gradients;
mod growing;
mod odd;
mod rotating;
mod scattered;

use candle_core::{DType, Device, Result, Storage, Tensor, Var};

use crate::check::{numbers, same_bits};

/// The dimension of the positions.
const DIM: usize = 2;

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    /// New keys or values of a number of positions.
    fn positions(&mut self, count: usize, dtype: DType) -> Result<Tensor> {
        self.below(2);
        numbers(&[2, 3, count, 4], self.0).to_dtype(dtype)
    }
}

/// Which keys and values lead to a Var.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Graph {
    Never,
    Always,
    Values,
    Sometimes,
}

const GRAPHS: [Graph; 4] = [Graph::Never, Graph::Always, Graph::Values, Graph::Sometimes];

impl Graph {
    /// Of keys, and of values.
    fn next(self, random: &mut Random) -> (bool, bool) {
        match self {
            Self::Never => (false, false),
            Self::Always => (true, true),
            Self::Values => (false, true),
            Self::Sometimes => (random.below(2) == 0, random.below(2) == 0),
        }
    }
}

/// The same values, with a graph if wanted.
fn in_graph(values: &Tensor, wanted: bool) -> Result<Tensor> {
    match wanted {
        true => Var::from_tensor(values)?.affine(1., 0.),
        false => Ok(values.clone()),
    }
}

fn same(ours: &Option<Tensor>, candles: &Option<Tensor>) -> Result<()> {
    match (ours, candles) {
        (Some(ours), Some(candles)) => {
            assert!(!ours.track_op(), "the cache keeps no graph");
            same_bits(ours, candles)
        }
        (ours, candles) => {
            assert_eq!(ours.is_none(), candles.is_none());
            Ok(())
        }
    }
}

/// What was returned, and a copy of what it should hold: it must not change later.
#[derive(Default)]
struct Returned(Vec<(Tensor, Tensor)>);

impl Returned {
    /// Compares, and keeps both if `ours` has a graph.
    fn push(&mut self, ours: Tensor, candles: &Tensor) -> Result<()> {
        same_bits(&ours, candles)?;
        self.0.push((ours, candles.force_contiguous()?));
        Ok(())
    }

    fn are_unchanged(&self) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|(ours, expected)| same_bits(ours, expected))
    }
}

/// Where the first element of a tensor lies in memory.
fn address(tensor: &Tensor) -> *const f32 {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => {
            let values = storage.as_slice::<f32>().expect("f32");
            &values[layout.start_offset()]
        }
        _ => panic!("not on the CPU"),
    }
}

fn mask(tensor: Option<Tensor>) -> Result<Option<Vec<Vec<u8>>>> {
    tensor.map(|mask| mask.to_vec2()).transpose()
}

fn cpu() -> Device {
    Device::Cpu
}
