use std::cell::Cell;
use std::sync::{Arc, Mutex};

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, Device, InplaceOp2, Layout, Result as CandleResult, Storage, Tensor,
};

use super::column::Column;
use super::gradient::Gradient;
use super::lanes::{Lanes, Target};
use super::noise::seed;
use super::real::{Real, reals};
use super::share::{CHUNK, squares, take};
use crate::error::Result;
use crate::optim::fused::{Halves, Managed, Setup, Snapshot, misplaced};
use crate::optim::rule::Rule;

/// The state of a parameter.
#[derive(Debug)]
pub struct State {
    step: u64,
    tensors: Vec<CpuStorage>,
    partials: Vec<f64>,
    scratch: Vec<f64>,
    /// Sum of the gradient's squares, from the last survey; NaN if it is not finite.
    pub squares: f64,
}

impl State {
    pub fn locked<R: Rule>(
        parameter: &Managed,
        saved: Option<&Snapshot>,
    ) -> Result<Arc<Mutex<Self>>> {
        let new = Snapshot::new(parameter, saved, &Device::Cpu)?;
        let tensors = new.tensors.iter().enumerate().map(|(index, tensor)| {
            if saved.is_none() && index < parameter.by_rule().len() {
                // Not copied: the system provides zeroed memory only when it is first written.
                return CpuDevice.zeros_impl(tensor.shape(), tensor.dtype());
            }
            let (storage, _) = tensor.storage_and_layout();
            match &*storage {
                Storage::Cpu(storage) => Ok(storage.clone()),
                _ => Err(misplaced()),
            }
        });
        Ok(Arc::new(Mutex::new(Self {
            step: new.step,
            tensors: tensors.collect::<CandleResult<_>>()?,
            partials: vec![0.; parameter.len.div_ceil(CHUNK)],
            scratch: vec![0.; R::matrices(parameter.var.dims())],
            squares: 0.,
        })))
    }

    pub fn snapshot(&self, parameter: &Managed) -> Snapshot {
        let tensors = self.tensors.iter().zip(&parameter.kept);
        let tensors = tensors.map(|(storage, held)| {
            let storage = Storage::Cpu(storage.clone());
            Tensor::from_storage(storage, held.dims(), BackpropOp::none(), false)
        });
        Snapshot {
            step: self.step,
            tensors: tensors.collect(),
        }
    }

    pub fn survey<C: Real>(&mut self, parameter: &Managed, gradient: &Tensor) -> CandleResult<()> {
        self.squares = add_squares::<C>(0., &mut self.partials, parameter, gradient)?;
        Ok(())
    }

    /// Updates the parameter with `scale` times its gradient.
    pub fn update<R: Rule, C: Real>(
        &mut self,
        setup: &Setup<R>,
        parameter: &Managed,
        gradient: &Tensor,
        scale: f64,
    ) -> CandleResult<()> {
        let work = |storage: &mut CpuStorage, gradient: &CpuStorage, layout: &Layout| {
            let mut values = Column::<C>::of(storage).ok_or_else(misplaced)?;
            let mut end = values.take(parameter.start).len();
            let by_rule = parameter.by_rule();
            let tensors = self.tensors.split_at_mut_checked(by_rule.len());
            let (moments, master) = tensors.ok_or_else(misplaced)?;
            let mut moments = moments.iter_mut().zip(by_rule);
            let mut next = || match moments.next() {
                Some((storage, held)) => Column::held(storage, held.form).ok_or_else(misplaced),
                None => Ok(Column::default()),
            };
            let master = master.first_mut();
            let master = master.map(|master| reals(master).ok_or_else(misplaced));
            let (mut state, mut master) = ([next()?, next()?], master.transpose()?);
            let bound = setup.adjustment.bound();
            let gradient = Gradient::new(gradient, layout, scale, bound)?;
            let step = self.step.saturating_add(1);
            self.step = step;
            for range in &parameter.ranges {
                let start = parameter.start + range.start;
                values.take(start - end);
                end = start + range.len();
                let lanes = Lanes::<C> {
                    start: range.start,
                    seed: seed(step, parameter.stream),
                    is_noisy: setup.halves == Halves::Stochastic,
                    parameter: values.take(range.len()),
                    gradient,
                    state: state.each_mut().map(|column| column.take(range.len())),
                    master: master.as_mut().map(|master| take(master, range.len())),
                };
                let target = Target {
                    lanes,
                    dims: parameter.var.dims(),
                    partials: &mut self.partials,
                    scratch: &mut self.scratch,
                };
                (setup.rule).apply(setup.rates(parameter), step, target);
            }
            Ok(())
        };
        let visit = Visit(Cell::new(Some(work)));
        parameter.handle.inplace_op2(gradient, &visit)
    }
}

/// Adds the squares of a gradient's elements to `total`, range after range; NaN if one is not finite.
pub fn add_squares<C: Real>(
    total: f64,
    partials: &mut [f64],
    parameter: &Managed,
    gradient: &Tensor,
) -> CandleResult<f64> {
    let (storage, layout) = gradient.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(misplaced());
    };
    let gradient = Gradient::<C>::new(storage, layout, 1., f64::INFINITY)?;
    Ok(parameter.ranges.iter().fold(total, |total, range| {
        let sum = squares(partials, range.len(), &|start, block: &mut [C]| {
            gradient.load(range.start + start, block);
            // The square of a finite f64 may be infinite.
            let finite = block.iter().map(|value| value.to_f64().is_finite());
            if !finite.fold(true, |all, one| all & one) {
                block.fill(C::from_f64(f64::NAN));
            }
        });
        total + sum
    }))
}

/// An operation that passes the storage of a parameter and of its gradient to `F`.
struct Visit<F>(Cell<Option<F>>);

impl<F> InplaceOp2 for Visit<F>
where
    F: FnOnce(&mut CpuStorage, &CpuStorage, &Layout) -> CandleResult<()>,
{
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        _: &Layout,
        gradient: &CpuStorage,
        layout: &Layout,
    ) -> CandleResult<()> {
        let work = self.0.take();
        work.map_or(Ok(()), |work| work(parameter, gradient, layout))
    }
}
