//! Kernels on the CPU: blocks of rows, on all threads.
//!
//! A kernel is compiled for f32 and f64 only. Blocks of other types are widened and rounded here.

use std::borrow::Cow;

use candle_core::{Result, Shape, Storage, Tensor, WithDType};
use num_traits::Zero;

use super::storage::{slice_of, tensor};
use super::{Element, Extent, Plan, on_all_threads};

/// Computes a block: the number of its first row, its inputs, and its outputs, which are zeros.
pub type Work<'a, S> = dyn Fn(usize, &[&[S]], Vec<&mut [S]>) -> Result<()> + Sync + 'a;

/// Runs a kernel whose last input is of type `T`. The inputs are contiguous, and of this type or that of sums.
pub fn run<T: Element>(
    name: &'static str,
    plan: &Plan,
    inputs: &[Tensor],
    work: &Work<'_, T::Sum>,
) -> Result<Vec<Tensor>> {
    let storages: Vec<_> = inputs.iter().map(Tensor::storage_and_layout).collect();
    let mut sources: Vec<Source<T>> = Vec::with_capacity(inputs.len());
    let given = inputs.iter().zip(&storages).zip(&plan.inputs);
    for ((input, (storage, layout)), extent) in given {
        let is_narrow = T::IS_NARROW && input.dtype() == T::DTYPE;
        sources.push(match (is_narrow, *extent) {
            (true, Extent::Row(width)) => Source::Narrow(slice_of(storage, layout, name)?, width),
            (true, _) => Source::All(T::widen(slice_of(storage, layout, name)?).into()),
            (false, Extent::Row(width)) => Source::Wide(slice_of(storage, layout, name)?, width),
            (false, _) => Source::All(slice_of::<T::Sum>(storage, layout, name)?.into()),
        });
    }
    let outputs = plan.outputs.iter().map(|of| Output::<T>::new(plan, of));
    let mut outputs: Vec<_> = outputs.collect();
    let mut blocks: Vec<Vec<Part<T>>> = Vec::new();
    blocks.resize_with(plan.blocks(), Vec::new);
    for output in &mut outputs {
        output.share(&mut blocks);
    }
    on_all_threads(blocks, &|index, mut parts| {
        let first = index * plan.at_once;
        let given = sources.iter().map(|it| it.rows(first, plan.at_once));
        let given: Vec<_> = given.collect();
        let given: Vec<_> = given.iter().map(|rows| &**rows).collect();
        work(first, &given, parts.iter_mut().map(Part::zeros).collect())?;
        parts.into_iter().for_each(Part::finish);
        Ok(())
    })?;
    let outputs = outputs.into_iter().map(|output| output.tensor(plan));
    Ok(outputs.collect())
}

/// An input.
enum Source<'a, T: Element> {
    All(Cow<'a, [T::Sum]>),
    /// With the number of elements of a row.
    Wide(&'a [T::Sum], usize),
    Narrow(&'a [T], usize),
}

impl<T: Element> Source<'_, T> {
    fn rows(&self, first: usize, rows: usize) -> Cow<'_, [T::Sum]> {
        match self {
            Self::All(values) => Cow::Borrowed(values),
            Self::Wide(values, width) => Cow::Borrowed(part(values, first * width, rows * width)),
            Self::Narrow(values, width) => {
                Cow::Owned(T::widen(part(values, first * width, rows * width)))
            }
        }
    }
}

fn part<T>(values: &[T], first: usize, len: usize) -> &[T] {
    let rest = values.get(first..).unwrap_or_default();
    rest.get(..len).unwrap_or(rest)
}

/// An output, or the parts that it is the sum of: elements in the type of sums, or those of a narrow type.
struct Output<T: Element> {
    shape: Shape,
    wide: Vec<T::Sum>,
    narrow: Vec<T>,
    /// Number of elements of a block.
    of_block: usize,
}

impl<T: Element> Output<T> {
    fn new(plan: &Plan, (shape, extent): &(Shape, Extent)) -> Self {
        let (len, of_block) = match *extent {
            Extent::Row(1) => (plan.rows, plan.at_once),
            Extent::Row(width) => (shape.elem_count(), plan.at_once * width),
            Extent::Block(len) => (plan.blocks() * len, len),
            Extent::All => (shape.elem_count(), shape.elem_count()),
        };
        let is_sum = len != shape.elem_count();
        let (wide, narrow) = match T::IS_NARROW && !plan.is_wide && !is_sum {
            true => (0, len),
            false => (len, 0),
        };
        Self {
            shape: shape.clone(),
            wide: vec![T::Sum::zero(); wide],
            narrow: vec![T::zero(); narrow],
            of_block,
        }
    }

    /// Gives each block its part.
    fn share<'a>(&'a mut self, blocks: &mut [Vec<Part<'a, T>>]) {
        let of_block = self.of_block.max(1);
        let mut wide = self.wide.chunks_mut(of_block);
        let mut narrow = self.narrow.chunks_mut(of_block);
        for block in blocks {
            block.push(Part {
                wide: wide.next().unwrap_or_default(),
                narrow: narrow.next().unwrap_or_default(),
                unrounded: Vec::new(),
            });
        }
    }

    fn tensor(self, plan: &Plan) -> Tensor {
        let storage = if self.narrow.is_empty() {
            let values = added_up(self.wide, self.shape.elem_count());
            match T::IS_NARROW && !plan.is_wide {
                true => {
                    let mut rounded = vec![T::zero(); values.len()];
                    T::narrow(&values, &mut rounded);
                    T::to_cpu_storage_owned(rounded)
                }
                false => T::Sum::to_cpu_storage_owned(values),
            }
        } else {
            T::to_cpu_storage_owned(self.narrow)
        };
        tensor(Storage::Cpu(storage), self.shape)
    }
}

/// The sum of parts of `len` elements, in their order.
fn added_up<S: Element<Sum = S>>(values: Vec<S>, len: usize) -> Vec<S> {
    if values.len() == len {
        return values;
    }
    let mut sums = vec![S::zero(); len];
    for part in values.chunks(len.max(1)) {
        let pairs = sums.iter_mut().zip(part);
        pairs.for_each(|(sum, part)| *sum += *part);
    }
    sums
}

/// A block's part of an output.
struct Part<'a, T: Element> {
    wide: &'a mut [T::Sum],
    narrow: &'a mut [T],
    /// The narrow elements before they are rounded.
    unrounded: Vec<T::Sum>,
}

impl<T: Element> Part<'_, T> {
    fn zeros(&mut self) -> &mut [T::Sum] {
        if self.narrow.is_empty() {
            return self.wide;
        }
        self.unrounded.resize(self.narrow.len(), T::Sum::zero());
        &mut self.unrounded
    }

    fn finish(self) {
        T::narrow(&self.unrounded, self.narrow);
    }
}
